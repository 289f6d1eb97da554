"""Masters in vLLM's own page pool: growth, budget, giving way, and every page back in the end."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("vllm")

from master_pools import PAGE, PAGES, Setup, longer, transcript
from tokendance_engine.segments.transcript import Transcript


def test_a_master_takes_just_the_pages_its_rows_need() -> None:
    setup = Setup()
    master = setup.master("s", 2 * PAGE + 1)
    assert len(master.blocks) == 3
    assert setup.free == setup.start - 3
    assert master.pages().dtype == np.int32
    assert len(set(master.pages().tolist())) == 3
    setup.families.check()


def test_a_master_grows_in_place_and_fills_its_last_page_first() -> None:
    setup = Setup()
    master = setup.master("s", 20)
    family = setup.families.get(("", "s"))
    assert family is not None
    before = master.pages().tolist()
    grown = setup.families.grow(family, longer(master.transcript, 12), True)
    assert grown is master
    assert master.pages().tolist() == before
    setup.families.grow(family, longer(master.transcript, 1), True)
    assert master.pages().tolist()[:2] == before
    assert len(master.blocks) == 3
    setup.families.check()


def test_rows_are_handed_out_once_in_order_and_within_the_limit() -> None:
    setup = Setup()
    master = setup.master("s", 25)
    sizes, tokens = [], list[int]()
    while master.pending:
        job = master.next_job(10)
        [run] = job.runs
        assert (job.master, run.start, run.shift) == (master.id, len(tokens), 0)
        assert run.pages.tolist() == master.pages().tolist()
        sizes.append(job.tokens)
        tokens += run.tokens.tolist()
    assert sizes == [10, 10, 5]
    assert tokens == master.transcript.tokens().tolist()


def test_masters_never_hold_more_than_their_share() -> None:
    setup = Setup(share=0.25)  # 8 of 33 pages
    families = setup.families
    assert families.grow(families.get_or_make(("", "big")), transcript(9 * PAGE), False) is None
    setup.master("one", 8 * PAGE, users=1)
    assert families.grow(families.get_or_make(("", "two")), transcript(PAGE), False) is None
    assert setup.free == setup.start - 8


def test_an_idle_master_makes_room_for_another_and_the_oldest_goes_first() -> None:
    setup = Setup(share=0.25)
    for session in "abc":
        setup.master(session, 2 * PAGE)
    setup.families.get(("", "a"))  # now b is the least recently used
    setup.master("d", 3 * PAGE)
    living = [row["session_id"] for row in setup.families.snapshot() if row["pages"]]
    assert living == ["c", "a", "d"]


def test_a_request_that_can_never_fit_costs_nobody_their_master() -> None:
    setup = Setup(share=0.25)
    families = setup.families
    setup.master("a", 2 * PAGE)
    setup.master("b", 3 * PAGE, users=1)
    assert families.grow(families.get_or_make(("", "big")), transcript(6 * PAGE), False) is None
    assert [row["pages"] for row in families.snapshot()] == [2, 3, 0]


def test_a_session_that_starts_a_new_master_may_use_the_pages_of_its_old_one() -> None:
    setup = Setup(share=0.25)
    old = setup.master("s", 5 * PAGE)
    new = setup.master("s", 6 * PAGE)
    assert new is not old
    assert old.retired
    assert setup.free == setup.start - 6
    setup.families.check()


def test_an_idle_master_that_is_extended_is_never_given_away_for_its_own_growth() -> None:
    setup = Setup(share=0.25)
    master = setup.master("s", 5 * PAGE)
    family = setup.families.get(("", "s"))
    assert family is not None
    assert setup.families.grow(family, longer(master.transcript, 4 * PAGE), True) is None
    assert family.master is master
    assert master.transcript.rows == 5 * PAGE
    setup.families.check()


def test_the_pool_running_dry_is_an_answer_not_an_error() -> None:
    setup = Setup(share=1.0)
    requests = setup.pool.get_new_blocks(setup.start - 2)
    families = setup.families
    assert families.grow(families.get_or_make(("", "s")), transcript(3 * PAGE), False) is None
    assert setup.free == 2
    setup.pool.free_blocks(requests)


def test_giving_way_frees_idle_masters_oldest_first_and_only_as_many_as_needed() -> None:
    setup = Setup(share=1.0)
    for session, users in (("busy", 1), ("old", 0), ("new", 0)):
        setup.master(session, 4 * PAGE, users)
    setup.families.give_way(setup.free)
    assert all(row["pages"] for row in setup.families.snapshot()), "there was room already"
    setup.families.give_way(setup.free + 1)
    assert [row["pages"] for row in setup.families.snapshot()] == [4, 0, 4]
    setup.families.give_way(PAGES)
    assert [row["pages"] for row in setup.families.snapshot()] == [4, 0, 0]


def test_a_master_retired_while_in_use_goes_with_its_last_user() -> None:
    setup = Setup()
    master = setup.master("s", 3 * PAGE, users=2)
    family = setup.families.get(("", "s"))
    assert family is not None
    setup.families.retire(family)
    assert family.master is None
    assert (len(master.blocks), setup.free) == (3, setup.start - 3)
    setup.families.release(master)
    assert setup.free == setup.start - 3
    setup.families.release(master)
    assert setup.free == setup.start


def test_releasing_a_master_that_stays_keeps_its_pages() -> None:
    setup = Setup()
    master = setup.master("s", 3 * PAGE, users=1)
    setup.families.release(master)
    assert (master.users, setup.free) == (0, setup.start - 3)


def test_clear_forgets_idle_families_and_says_whether_any_is_left() -> None:
    setup = Setup()
    setup.master("idle", PAGE)
    busy = setup.master("busy", PAGE, users=1)
    assert not setup.families.clear()
    assert [row["session_id"] for row in setup.families.snapshot()] == ["busy"]
    setup.families.release(busy)
    assert setup.families.clear()
    assert setup.free == setup.start


def test_tenants_with_one_session_name_have_families_of_their_own() -> None:
    families = Setup().families
    assert families.get_or_make(("tenant-1", "s")) is not families.get_or_make(("tenant-2", "s"))
    assert families.get(("tenant-3", "s")) is None
    assert [row["salted"] for row in families.snapshot()] == [True, True]
    assert "tenant" not in str(families.snapshot())


def test_only_so_many_families_are_remembered_and_those_in_use_stay() -> None:
    setup = Setup(limit=2)
    setup.master("busy", PAGE, users=1)
    for session in "abc":
        setup.master(session, PAGE)
    assert [row["session_id"] for row in setup.families.snapshot()] == ["busy", "c"]
    assert setup.free == setup.start - 2


def test_a_master_is_found_by_its_id_only_while_it_is_current() -> None:
    setup = Setup()
    old = setup.master("s", PAGE, users=1)
    family = setup.families.get(("", "s"))
    assert setup.families.find(old.id) is family
    new = setup.master("s", PAGE)
    assert setup.families.find(old.id) is None
    assert setup.families.find(new.id) is family


def test_rows_after_skipped_positions_are_handed_out_as_runs_of_their_own() -> None:
    setup = Setup()
    wanted = Transcript(np.arange(PAGE, dtype=np.int32))
    for name, position in ((b"x", 3 * PAGE), (b"y", 7 * PAGE)):
        wanted.open_region(np.full(-wanted.rows % PAGE, 9, dtype=np.int32))
        wanted.append(name, np.arange(20, dtype=np.int32))
        wanted.place(position)
    master = setup.families.grow(setup.families.get_or_make(("", "s")), wanted, False)
    assert master is not None
    first, second = master.next_job(PAGE + 4), master.next_job(1000)
    runs = [(run.start, len(run.tokens), run.shift) for run in (*first.runs, *second.runs)]
    assert runs == [
        (0, PAGE, 0),
        (PAGE, 4, 2 * PAGE),
        (PAGE + 4, 16, 2 * PAGE),
        (16, 12, 2 * PAGE),  # fillers repeat these rows
        (3 * PAGE, 20, 4 * PAGE),
    ]
    assert second.runs[1].written().tolist() == list(range(36, 48))
    assert (first.tokens, second.tokens, master.pending) == (PAGE + 4, 48, 0)
    handed = [t for job in (first, second) for run in job.runs for t in run.tokens.tolist()]
    expected = wanted.tokens()
    expected[36:48] = expected[16:28]
    assert handed == expected.tolist()
