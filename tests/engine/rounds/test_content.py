"""Which untagged requests belong together."""

from __future__ import annotations

from tiny_rounds import Block, cut, private
from tokendance_engine.rounds.content import PREFIX, ContentSessions
from tokendance_sdk.protocol import ID_PATTERN

SYSTEM, ASK = tuple(range(400, 500)), (7, 8)
A, B, C = tuple(range(100, 180)), tuple(range(200, 280)), tuple(range(300, 370))


def name(sessions: ContentSessions, *blocks: Block, tenant: str = "") -> str:
    return sessions.name(tenant, cut([SYSTEM, *blocks, ASK])[1])


def test_requests_that_share_a_block_belong_together_across_rounds() -> None:
    sessions = ContentSessions(64)
    first = name(sessions, private(0, 0, 20), A)
    assert name(sessions, private(1, 0, 20), A) == first
    assert name(sessions, private(1, 50, 20), A, B) == first
    assert name(sessions, private(2, 0, 20), B) == first, "B came with a request of that session"


def test_what_only_opens_or_ends_a_prompt_brings_nobody_together() -> None:
    sessions = ContentSessions(64)
    assert name(sessions, A) != name(sessions, B), "only the system prompt is common"
    long_ask = tuple(range(600, 700))
    one, two = (sessions.name("", cut([SYSTEM, block, long_ask])[1]) for block in (C, tuple(C[::-1])))
    assert one != two


def test_too_little_in_common_is_nothing_in_common() -> None:
    sessions = ContentSessions(64)
    assert name(sessions, A[:40], A) == name(sessions, A[:40], A)
    assert name(sessions, A[:40], C) != name(sessions, A[:40], B)


def test_the_session_with_most_in_common_wins_and_keeps_its_blocks() -> None:
    sessions = ContentSessions(64)
    one, two = name(sessions, A), name(sessions, B, C)
    assert name(sessions, A, B, C) == two
    assert name(sessions, A) == one


def test_tenants_never_meet() -> None:
    sessions = ContentSessions(64)
    names = {name(sessions, A, tenant=tenant) for tenant in ("", "a", "b")}
    assert len(names) == 3
    assert name(sessions, A, tenant="a") in names


def test_no_client_can_name_such_a_session() -> None:
    assert not ID_PATTERN.fullmatch(name(ContentSessions(64), A))
    assert name(ContentSessions(64), A).startswith(PREFIX)


def test_what_is_remembered_is_bounded_and_the_least_recently_used_goes() -> None:
    sessions = ContentSessions(64, limit=2)
    first = name(sessions, A)
    name(sessions, B)
    assert name(sessions, A) == first
    name(sessions, C)
    assert len(sessions._sessions) == 2
    assert name(sessions, A) == first
