"""Every backend in an engine: the KV it leaves, alone or together, and who may find it afterwards."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from offset_backend import Offset, install
from rounds import Rounds, join
from steps import Steps
from tokendance_bench.inproc import Outcome, Prompt
from tokendance_engine.errors import RequestRejectedError
from tokendance_engine.reuse.backends import built_in
from tokendance_engine.reuse.ports import MemberJob
from vllm.exceptions import VLLMValidationError

pytestmark = pytest.mark.server
SETTINGS: dict[str, Any] = {}

_PACKAGES = Path(tempfile.mkdtemp(prefix="tokendance-backends-"))
install(_PACKAGES)
sys.path.append(str(_PACKAGES))

HISTORIES = (70, 101, 133, 64)
WAYS: list[dict[str, Any]] = [
    {"backend": "master", "fidelity": "fast", "placement": "copy"},
    {"backend": "master", "fidelity": "balanced"},
    {"backend": "all"},
    *({"backend": "epic", "options": {"source": source}} for source in ("alone", "master")),
    *({"backend": "cacheblend", "options": {"source": source}} for source in ("alone", "master")),
    {"backend": "cacheblend", "options": {"layer": 2, "percent": 40}},
    *({"backend": "cacheblend-blocks", "options": {"source": source}} for source in ("alone", "master")),
    {"backend": "test-offset"},
]
DEVIATING = [w for w in WAYS if w["backend"].startswith("cacheblend")]


def way_id(way: dict[str, Any]) -> str:
    return "-".join([way["backend"], way.get("fidelity", ""), *map(str, way.get("options", {}).values())])


every_way = pytest.mark.parametrize("way", WAYS, ids=way_id)


@dataclass
class Filled:
    """What the worker left in members' pages."""

    jobs: list[MemberJob] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    rows: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=dict)


@contextlib.contextmanager
def watched(rounds: Rounds) -> Iterator[Filled]:
    """Read every member's pages right after they were filled."""
    seen, collect = Filled(), rounds.worker.collect_members

    def collect_and_read(kv: Any, batch: Any, jobs: list[MemberJob]) -> Any:
        done = collect(kv, batch, jobs)
        seen.calls.append(len(jobs))
        for job in jobs:
            size = len(job.pages) * kv.page_size
            seen.rows[len(seen.jobs)] = [(k.clone(), v.clone()) for k, v in rounds.rows(job.pages, size)]
            seen.jobs.append(job)
        return done

    rounds.worker.collect_members = collect_and_read
    try:
        yield seen
    finally:
        del rounds.worker.collect_members


def played(
    rounds: Rounds, prompts: list[Prompt], round_id: str = "s:1", **how: Any
) -> tuple[Outcome, Filled]:
    with watched(rounds) as seen:
        return rounds.play(prompts, round_id, **how), seen


def exact_rows(rounds: Rounds, tokens: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """K and V that plain vLLM computes, from empty caches."""
    rounds.forget()
    steps = Steps(rounds)
    steps.add("plain", Prompt("plain", tokens, []), max_tokens=3)
    steps.step()
    (group,) = rounds.scheduler._manager.coordinator.single_type_managers
    (blocks,) = group.req_to_blocks.values()
    found = [(k.clone(), v.clone()) for k, v in rounds.rows([b.block_id for b in blocks], len(tokens))]
    steps.finish()
    rounds.forget()
    return found


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-3)


def restored_at(job: MemberJob) -> npt.NDArray[np.int64]:
    return np.concatenate([np.arange(at, at + n) for at, n in job.moves[:, 1:3].tolist()])


@every_way
def test_alone_or_together_members_get_the_same_kv_and_say_the_same(
    rounds: Rounds, way: dict[str, Any]
) -> None:
    prompts = rounds.members(HISTORIES, orders=[[0, 1, 2], [2, 0, 1], [1, 2, 0], [0, 1, 2]])
    together, one = played(rounds, prompts, execution="collective", **way)
    rounds.forget()
    rounds.scribble()
    alone, other = played(rounds, prompts, execution="serial", **way)
    assert (one.calls, other.calls) == ([4], [1, 1, 1, 1])
    assert alone.tokens == together.tokens
    for a, b in zip(one.rows.values(), other.rows.values(), strict=True):
        assert all(close(x, y) for pair in zip(a, b, strict=True) for x, y in zip(*pair, strict=True))
    for a, b in zip(together.reports, alone.reports, strict=True):
        same = ("backend", "reused_tokens", "recomputed_tokens", "checked_tokens", "fresh_tokens")
        assert {k: a[k] for k in same} == {k: b[k] for k in same}
        assert (a["backend"], a["fallback_reason"]) == (way["backend"], None)
        assert (a["execution"], b["execution"]) == ("collective", "serial")


def test_the_table_of_ways_names_every_backend() -> None:
    assert {kind.name for kind in built_in()} <= {w["backend"] for w in WAYS}


@every_way
def test_every_token_is_reported_once(rounds: Rounds, way: dict[str, Any]) -> None:
    prompts = rounds.members(HISTORIES)
    for report in rounds.play(prompts, **way).reports:
        parts = ("cached_tokens", "reused_tokens", "recomputed_tokens", "fresh_tokens")
        assert sum(report[p] for p in parts) == report["prompt_tokens"] + report["filler_tokens"]
        assert (report["placement"] == "copy") or way["backend"] == "master"


def test_segments_of_source_alone_are_what_vllm_computes_after_the_neutral_preamble(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, blocks=(90, 40, 133))
    got, seen = played(rounds, prompts, backend="epic", options={"first": 0})
    assert all(r["reused_tokens"] > 0 for r in got.reports)
    (family,) = rounds.scheduler._families._families.values()
    transcript = family.master.transcript
    preamble = transcript.preamble.tolist()
    rows = rounds.rows(family.master.pages(), transcript.rows)
    rows = [(k.clone(), v.clone()) for k, v in rows]
    assert transcript.apart == 32
    assert len(preamble) % 32 == 0
    entries = [e for e in transcript.entries if e.key]
    assert [len(e.tokens) for e in entries] == [90, 40, 133]
    del seen
    for entry in entries:
        truth = exact_rows(rounds, preamble + entry.tokens.tolist())
        for (key, value), (right_key, right_value) in zip(rows, truth, strict=True):
            assert close(key[entry.row : entry.row + len(entry.tokens)], right_key[len(preamble) :])
            assert close(value[entry.row : entry.row + len(entry.tokens)], right_value[len(preamble) :])


@pytest.mark.parametrize("source", ["alone", "master"])
def test_cacheblend_recomputes_the_tokens_whose_keys_deviate_most(rounds: Rounds, source: str) -> None:
    """Judged by plain vLLM's keys: at layer 1 a token's own key depends on layer 0, whose KV reuse leaves exact."""
    prompts = rounds.members(HISTORIES)
    options = {"source": source, "percent": 0}
    _, untouched = played(rounds, prompts, backend="cacheblend", options=options)
    rounds.forget()
    got, seen = played(rounds, prompts, backend="cacheblend", options={**options, "percent": 20})
    for i, (prompt, report) in enumerate(zip(prompts, got.reports, strict=True)):
        at = restored_at(seen.jobs[i])
        truth = exact_rows(rounds, prompt.tokens)
        old, new = untouched.rows[i], seen.rows[i]
        deviation = (truth[1][0][at] - old[1][0][at]).square().sum((1, 2))
        count = -(-len(at) * 20 // 100)
        expected = set(at[deviation.argsort(descending=True)[:count].numpy()].tolist())
        changed = (new[2][1][at] != old[2][1][at]).flatten(1).any(1).numpy()
        assert set(at[changed].tolist()) == expected
        assert report["recomputed_tokens"] == count
        assert report["checked_tokens"] == len(at) + seen.jobs[i].ask.compute[:, 1].sum() - (
            seen.jobs[i].ask.compute[:, 0].sum()
        )


@pytest.mark.parametrize("backend", ["cacheblend", "cacheblend-blocks"])
def test_recomputing_all_of_it_equals_full_prefill(rounds: Rounds, backend: str) -> None:
    prompts = rounds.members(HISTORIES)
    truth = rounds.plain(prompts)
    got, seen = played(rounds, prompts, backend=backend, options={"percent": 100})
    assert got.tokens == truth
    assert {r["reused_tokens"] for r in got.reports} == {0}
    exact = exact_rows(rounds, prompts[0].tokens)
    for (key, value), (right_key, right_value) in zip(seen.rows[0], exact, strict=True):
        assert close(key, right_key[: len(key)])
        assert close(value, right_value[: len(value)])


def test_blocks_are_chosen_by_one_member_for_all(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, blocks=(96, 96, 96))
    got, seen = played(rounds, prompts, backend="cacheblend-blocks", options={"percent": 25})
    assert [r["checked_tokens"] > 0 for r in got.reports] == [True, False, False, False]
    counts = {r["recomputed_tokens"] for r in got.reports}
    assert len(counts) == 1, "same blocks in the same order: the same choice"
    assert counts.pop() >= 0.25 * len(restored_at(seen.jobs[0]))


@pytest.mark.parametrize("way", DEVIATING, ids=way_id)
def test_what_is_chosen_brings_answers_closer(rounds: Rounds, way: dict[str, Any]) -> None:
    prompts = rounds.members(HISTORIES)
    exact = [exact_rows(rounds, p.tokens) for p in prompts]
    error = []
    for percent in (0, 60):
        options = {**way.get("options", {}), "percent": percent}
        _, seen = played(rounds, prompts, backend=way["backend"], options=options)
        rounds.forget()
        last = [(seen.rows[i][2][1] - exact[i][2][1][: len(seen.rows[i][2][1])]) for i in range(len(prompts))]
        error.append(sum(float(d.square().sum()) for d in last))
    assert error[1] < error[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"fidelity": "fast"}, {"backend": "cacheblend"}),
        (
            {"fidelity": "fast", "placement": "copy"},
            {"backend": "cacheblend", "options": {"source": "master"}},
        ),
        ({"backend": "cacheblend"}, {"fidelity": "fast"}),
        ({"backend": "cacheblend"}, {"backend": "epic"}),
        ({"backend": "cacheblend"}, {"backend": "cacheblend", "options": {"percent": 16}}),
        ({"backend": "epic"}, {"backend": "epic", "options": {"source": "master"}}),
        ({"fidelity": "fast"}, {"fidelity": "balanced"}),
        ({"fidelity": "fast"}, {"backend": "all"}),
    ],
)
def test_other_backends_and_other_options_never_find_each_others_pages(
    rounds: Rounds, one: dict[str, Any], other: dict[str, Any]
) -> None:
    prompts = rounds.members(HISTORIES)
    clean, _ = played(rounds, prompts, **other)
    rounds.forget()
    rounds.scribble()
    first = rounds.play(prompts, "s:1", **one)
    assert all(r["reused_tokens"] > 0 for r in first.reports)
    got = rounds.play(prompts, "s:2", **other)
    for report, prompt in zip(got.reports, prompts, strict=True):
        assert report["approximate_cached_tokens"] == 0
        assert report["cached_tokens"] <= (prompt.boundaries[0] + 32) // 32 * 32
    assert got.tokens == clean.tokens
    again = rounds.play(prompts, "s:3", **other)
    found = [r["approximate_cached_tokens"] > 0 for r in again.reports]
    assert all(found) or other == {"backend": "all"}, "it does not find its own pages: the test shows nothing"
    assert again.tokens == clean.tokens


@pytest.mark.parametrize("backend", ["epic", "cacheblend", "cacheblend-blocks"])
def test_the_next_round_goes_on_from_the_segments_there_are(rounds: Rounds, backend: str) -> None:
    prompts = rounds.members()
    first = rounds.play(prompts, "s:1", backend=backend, max_tokens=8)
    blocks, end = [rounds.random(200), rounds.random(90)], rounds.random(20)
    following = []
    for p, answer in zip(prompts, first.tokens, strict=True):
        more = join(p.agent, p.tokens + answer, blocks, end)
        following.append(Prompt(p.agent, more.tokens, p.boundaries + more.boundaries))
    got = rounds.play(following, "s:2", backend=backend)
    for report in got.reports:
        assert report["approximate_cached_tokens"] > 0
        assert report["reused_tokens"] > 100
    (family,) = rounds.scheduler._families.snapshot()
    assert (family["segments"], family["source"]) == (5, "alone")


def test_a_plain_request_gets_the_exact_answer_after_any_of_them(rounds: Rounds) -> None:
    prompts = rounds.members()
    truth = rounds.plain(prompts, max_tokens=40)
    for way in WAYS:
        got = rounds.play(prompts, max_tokens=40, **way)
        if way["backend"] not in ("all", "test-offset"):
            assert got.tokens != truth, "not approximate: the test shows nothing"
        assert rounds.round(prompts, max_tokens=40).tokens == truth
        rounds.forget()


def test_members_of_one_round_may_name_different_backends(rounds: Rounds) -> None:
    prompts = rounds.members((70, 101, 133, 64), blocks=(150, 150))
    steps = Steps(rounds)
    for i, p in enumerate(prompts):
        backend = "epic" if i % 2 else "master"
        steps.add(p.agent, p, {"round_id": "s:1", "round_size": 4, "backend": backend, "fidelity": "fast"})
    steps.finish()
    for i, p in enumerate(prompts):
        report = steps.report(p.agent)
        assert (report["backend"], report["fallback_reason"]) == ("epic" if i % 2 else "master", None)
        assert report["gather_ms"] < 1_500, "they waited for each other in vain"
        assert report["reused_tokens"] > 100
    assert sorted(f["source"] for f in rounds.scheduler._families.snapshot()) == ["alone", "master"]
    rounds.scheduler._families.release_family(("", "s"))
    assert rounds.scheduler._families.snapshot() == []


def test_a_backend_from_an_entry_point_learns_in_one_round_and_corrects_in_the_next(rounds: Rounds) -> None:
    prompts = rounds.members((70, 101, 133))
    end = prompts[0].tokens[prompts[0].boundaries[-1] :]
    cuts = prompts[0].boundaries
    blocks = [prompts[0].tokens[a:b] for a, b in pairwise(cuts)]
    got, _ = played(rounds, prompts, "s:1", backend="test-offset")
    assert {r["reused_tokens"] for r in got.reports} == {0}, "it knows nothing yet"
    assert got.tokens == rounds.plain(prompts)
    rounds.forget()
    rounds.worker._judge._backends.clear()
    rounds.worker._judge._lessons._waiting.clear()

    rounds.play(prompts, "s:1", backend="test-offset")
    # Histories of whole pages: every block is then one piece, as it was in the first round.
    others = [join(f"b{i}", rounds.random(n), blocks, end) for i, n in enumerate((88, 120))]
    _, untouched = played(
        rounds, others, "t:1", backend="cacheblend", options={"percent": 0, "source": "master"}
    )
    got, seen = played(rounds, others, "s:2", backend="test-offset")
    (backend,) = [b for b in rounds.worker._judge._backends.values() if isinstance(b, Offset)]
    assert backend.seen
    corrected = 0
    for i, (prompt, report) in enumerate(zip(others, got.reports, strict=True)):
        assert report["backend"] == "test-offset"
        corrected += report["reused_tokens"]
        for number, (a, b) in enumerate(pairwise(prompt.boundaries)):
            key = next((k for k in backend.seen if k[:4] == (_key(blocks[number]), 0, b - a, 1)), None)
            if key is None or b > len(seen.rows[i][1][1]):
                continue  # a block whose end stands in a page that vLLM computes
            offset = torch.stack([v for _, v in backend.seen[key]]).mean(0)
            assert len(backend.seen[key]) == 3, "the second round's own members were taken for known"
            right = untouched.rows[i][1][1][a:b] + offset
            assert close(seen.rows[i][1][1][a:b], right)
            assert not close(seen.rows[i][1][1][a:b], untouched.rows[i][1][1][a:b])
            # Keys turn with their positions: what was learned elsewhere is of use here.
            keys = torch.stack([k for k, _ in backend.seen[key]]).mean(0)
            moved = backend.turn(1, keys, np.zeros(b - a, dtype=np.int64), np.arange(a, b))
            assert close(seen.rows[i][1][0][a:b], untouched.rows[i][1][0][a:b] + moved)
    assert corrected > 150


def _key(block: list[int]) -> bytes:
    from tokendance_engine.segments.key import segment_key

    return segment_key(np.array(block, dtype=np.int32))


def test_a_backend_that_answers_nonsense_costs_its_members_the_reuse_and_nothing_else(rounds: Rounds) -> None:
    prompts = rounds.members()
    truth = rounds.plain(prompts)
    got = rounds.play(prompts, backend="test-broken")
    assert got.tokens == truth
    assert {r["fallback_reason"] for r in got.reports} == {"worker_error"}
    assert all(r["reused_tokens"] > 0 for r in rounds.play(rounds.members(), "s:2", fidelity="fast").reports)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"backend": "mastr"}, "allowed: all, cacheblend, cacheblend-blocks, epic, master, test-broken"),
        ({"backend": "test-missing"}, "could not be loaded from 'offset_backend:Missing'"),
        ({"backend": "cacheblend", "options": {"layer": 3}}, "check layer 3 .* allowed: 0 to 2"),
        ({"backend": "epic", "options": {"source": "moon"}}, "allowed: one of alone, master"),
        ({"execution": "parallel"}, "should be 'collective' or 'serial'"),
    ],
)
def test_what_does_not_exist_is_refused(rounds: Rounds, how: dict[str, Any], says: str) -> None:
    with pytest.raises((VLLMValidationError, RequestRejectedError), match=says):
        rounds.play(rounds.members(), **how)
