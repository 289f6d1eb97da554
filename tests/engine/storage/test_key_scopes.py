"""Who may share what: two tenants never, whatever they send."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from storage_samples import SMALL, keys, random_rows, random_tokens, reader
from tokendance_engine.storage.keys import Scope, context_after, digest, secret_file, segment_key
from tokendance_engine.storage.store import Store

TOKENS = random_tokens(np.random.default_rng(0), 60)
ROWS = random_rows(SMALL, 60, 0)
IDS = 60 * 4
ONE = 60 * (SMALL.row_bytes + 4)


@pytest.mark.parametrize(
    ("scope", "other", "shared"),
    [
        (Scope.SESSION, ("t", "s2"), False),
        (Scope.SESSION, ("u", "s"), False),
        (Scope.TENANT, ("t", "s2"), True),
        (Scope.TENANT, ("u", "s"), False),
        (Scope.PUBLIC, ("u", "s2"), True),
    ],
)
def test_equal_segments_are_stored_once_only_within_the_scope(
    scope: Scope, other: tuple[str, str], shared: bool
) -> None:
    store = Store(keys(scope=scope), 1 << 26)
    for i, (salt, session) in enumerate([("t", "s"), other]):
        assert store.put_master(store.keys.family(salt, session), i, TOKENS, reader(ROWS)) == 60
    store.check()
    assert store.report().used == (ONE if shared else 2 * ONE) + 2 * IDS


def test_equal_text_with_other_bytes_is_not_shared_and_the_first_keeps_its_own() -> None:
    store = Store(keys(scope=Scope.TENANT), 1 << 26)
    noisy = ROWS.clone()
    noisy[1, 1, 30, 0, 0] += 1e-6
    families = [store.keys.family("t", session) for session in ("s", "s2")]
    store.put_master(families[0], 0, TOKENS, reader(ROWS))
    store.put_master(families[1], 1, TOKENS, reader(noisy))
    store.check()
    assert store.report().used == 2 * ONE + 2 * IDS
    for family, rows in zip(families, (ROWS, noisy), strict=True):
        master = store.master(family)
        assert master is not None
        assert (master.segments[0].rows.kv == rows).all()


def test_a_shared_segment_outlives_the_family_that_brought_it() -> None:
    store = Store(keys(scope=Scope.TENANT), 1 << 26)
    families = [store.keys.family("t", session) for session in ("s", "s2")]
    for i, family in enumerate(families):
        store.put_master(family, i, TOKENS, reader(ROWS))
    store.release(families[0])
    store.check()
    assert store.report().used == ONE + IDS
    store.release(families[1])
    assert store.report().used == 0


def test_keys_differ_with_scope_context_position_and_text() -> None:
    made = {
        segment_key(scope, context, first, tokens)
        for scope in (b"a", b"b")
        for context in (b"", context_after(b"", 0, TOKENS))
        for first in (0, 60)
        for tokens in (TOKENS, TOKENS[:-1])
    }
    assert len(made) == 16


def test_parts_of_a_key_do_not_run_into_each_other() -> None:
    assert digest(b"ab", b"c") != digest(b"a", b"bc")
    assert digest(b"ab") != digest(b"a", b"b")


def test_a_salt_is_only_kept_as_a_keyed_hash() -> None:
    one, other = keys(), keys()
    other = type(other)(other.model, other.scope, b"another secret" + bytes(18))
    assert one.family("salt", "s") != other.family("salt", "s")
    assert "salt" not in repr(one.family("salt", "s"))


def test_a_secret_is_made_once_and_read_by_its_owner_only(tmp_path: Path) -> None:
    secret = secret_file(tmp_path / "secret")
    assert len(secret) == 32
    assert secret_file(tmp_path / "secret") == secret
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
