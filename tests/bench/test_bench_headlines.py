"""Headlines follow from rows, however many of them are there."""

from __future__ import annotations

from typing import Any

import pytest
from tokendance_bench import (
    capacity,
    collective,
    fidelity,
    greedy,
    histories,
    layouts,
    motivation,
    overhead,
    pages,
    pareto,
    prefill,
)
from tokendance_bench.load import Served, arrivals, distinct, summary
from tokendance_bench.run_synthetic import Shape, synthetic


def prefill_rows() -> list[dict[str, Any]]:
    seconds = {
        "vllm": (10, 12),
        "vllm-shared-first": (4, 4),
        "tokendance-balanced": (5, 3),
        "tokendance-fast": (2, 2),
    }
    return [
        {"system": name, "round": 4 + n, "seconds": took}
        for name, each in seconds.items()
        for n, took in enumerate(each)
    ]


def test_prefill_compares_with_both_exact_ways() -> None:
    found = prefill.speedups(prefill_rows(), 10)
    assert found["speedup_vs_vllm_balanced_n10"] == 3.0  # median of 2 and 4
    assert found["speedup_vs_shared_first_balanced_n10"] == pytest.approx(1.07, abs=0.01)  # of 0.8 and 1.33
    assert found["speedup_vs_vllm_shared_first_n10"] == 2.75
    assert "speedup_vs_vllm_vllm_n10" not in found


def test_prefill_leaves_out_what_was_not_measured() -> None:
    rows = [row for row in prefill_rows() if row["system"] != "vllm"]
    assert {key.split("_balanced")[0] for key in prefill.speedups(rows[:3], 5)} == {"speedup_vs_shared_first"}
    assert prefill.speedups([], 5) == {}


def served(system: str, agents: int, latency: float, load: float = 0.5, failed: int = 0) -> dict[str, Any]:
    return {
        "part": "served", "system": system, "agents": agents, "load": load, "latency_s": latency, "slo_s": 2.0,
        "failed": failed,
    }  # fmt: skip


def test_capacity_counts_agents_within_the_target() -> None:
    rows = [
        *(served("vllm", n, n * 0.6) for n in (1, 3, 5, 10)),
        *(served("tokendance-balanced", n, n * 0.2) for n in (1, 3, 5, 10)),
        *(served("serial-cacheblend15", n, n * 0.4) for n in (1, 3, 5, 10)),
    ]
    found = capacity.served_headline(rows)
    assert (found["max_agents_vllm"], found["max_agents_tokendance-balanced"]) == (3, 10)
    assert found["max_agents_vs_vllm"] == 3.33
    assert found["max_agents_vs_serial"] == 2.0
    assert found["round_latency_vs_vllm_n10"] == 0.333


def test_a_point_with_failed_members_carries_nobody() -> None:
    assert capacity.agents_within([served("vllm", 5, 0.1, failed=1)], "vllm", 0.5) == 0


def test_capacity_leaves_out_ratios_to_nothing() -> None:
    rows = [
        served("vllm", 3, 9.0),
        served("tokendance-fast", 3, 1.0),
        {"part": "served", "system": "x", "error": "e"},
    ]
    assert not any("max_agents_vs" in key for key in capacity.served_headline(rows))


def test_pages_are_medians_of_ratios_in_the_better_direction() -> None:
    rows = [
        {"system": system, "round": number, "running_at_once": seats, "pages_beyond_history": held}
        for system, number, seats, held in [
            ("vllm", 1, 4, 900),
            ("vllm", 2, 5, 800),
            ("vllm", 3, 2, 900),
            ("tokendance-fast", 1, 12, 300),
            ("tokendance-fast", 2, 10, 100),
            ("tokendance-fast", 3, 12, 450),
        ]
    ]
    assert pages.ratios(rows, 10, live=False) == {"agents_running_at_once_vs_vllm_fast": 3.0}
    assert pages.ratios(rows, 10, live=True) == {"live_pages_ratio_fast_n10": 3.0}
    assert pages.ratios(rows[3:], 10, live=True) == {}


def test_collective_divides_rounds_of_the_same_number() -> None:
    def row(system: str, seconds: float, number: int) -> dict[str, Any]:
        return {"system": system, "agents": 10, "round": number, "load": 0, "seconds": seconds}

    rows = [
        row("serial-balanced", 6.0, 2), row("tokendance-balanced", 3.0, 2), row("serial-cacheblend15", 9.0, 2),
        row("tokendance-balanced-copy", 3.0, 2), row("serial-balanced", 100.0, 3),
    ]  # fmt: skip
    assert collective.ratios(rows) == {
        "collective_over_serial_n10": 2.0,
        "balanced_over_serial_cacheblend15_n10": 3.0,
    }


def test_collective_says_what_three_rounds_leave_open() -> None:
    rows = [
        {"system": system, "agents": 3, "round": number, "load": 0, "seconds": seconds}
        for number, serial in enumerate([2.0, 4.0, 3.0])
        for system, seconds in (("serial-fast", serial), ("tokendance-fast", 2.0))
    ]
    assert collective.ratios(rows) == {
        "collective_over_serial_fast_n3": 1.5,
        "collective_over_serial_fast_low_n3": 1.0,
    }


def test_overhead_judges_all_pairs_and_the_worse_share() -> None:
    pairs = [
        {"kind": k, "ratio": 1.0 + n / 1000, "identical": True} for k in ("short", "long") for n in range(21)
    ]
    shares = [{"kind": "short", "hook_share_of_step": 0.01}, {"kind": "long", "hook_share_of_step": 0.002}]
    found = overhead.headline([*pairs, *shares])
    assert found["slowdown"] == 1.01
    assert found["slowdown_upper95"] > 1.01
    assert found["hook_share_of_step"] == 0.01
    assert found["outputs_identical"] is True
    assert (
        overhead.headline([*pairs, {"kind": "long", "ratio": 1.0, "identical": False}])["outputs_identical"]
        is False
    )
    assert overhead.headline([]) == {}


def test_overhead_asks_something_new_each_time_and_both_the_same() -> None:
    asked = [overhead.question(kind, n) for kind in overhead.KINDS for n in range(20)]
    assert len({text[:60] for text in asked}) == len(asked)
    assert overhead.question("long", 3) == overhead.question("long", 3)
    assert len(overhead.question("long", 0).split()) > 20 * len(overhead.question("short", 0).split())


def test_layouts_name_the_best_of_both_worlds() -> None:
    rows = [
        {"workload": "w", "system": s, "layout": at, "seconds": took}
        for s, at, took in (
            ("vllm", "history-first", 9),
            ("vllm", "shared-first", 4),
            ("tokendance-fast", "shuffled", 2),
        )
    ]
    assert layouts.headline(rows) == {
        "best_exact_w": "vllm, shared-first",
        "best_ours_w": "tokendance-fast, shuffled",
        "best_over_best_exact_w": 2.0,
    }


def test_the_frontier_has_what_nothing_beats() -> None:
    rows = [
        {"backend": b, "setting": s, "computed_share": share, "kl": kl}
        for b, s, share, kl in (
            ("a", "1", 0.1, 0.5),
            ("b", "1", 0.1, 0.2),
            ("a", "2", 0.2, 0.3),
            ("a", "3", 0.4, 0.1),
        )
    ]
    assert pareto.frontier(rows) == ["b 1", "a 3"]


def test_histories_leave_the_first_round_out() -> None:
    rows = [
        {"system": s, "round": n, "seconds": took}
        for s, each in (("vllm", (99, 4, 6)), ("stored-fast", (99, 2, 3)))
        for n, took in enumerate(each, 1)
    ]
    assert histories.headline(rows)["speedup_vs_vllm_stored_fast"] == 2.0
    assert histories.headline(rows[:1]) == {}


def fidelity_row(context: str, level: str, number: int, kl: float) -> dict[str, Any]:
    return {"workload": "w", "context": context, "level": level, "round": number, "kl": kl, "top1": 0.9}


def test_fidelity_tells_its_parts_apart() -> None:
    rows = [
        fidelity_row("single", fidelity.FLOOR, 4, 0.001),
        fidelity_row("single", "fast copy", 4, 0.03),
        *(fidelity_row("transcript", "fast copy", n, kl) for n, kl in enumerate((0.01, 0.01, 0.02, 0.02))),
    ]
    assert fidelity.of_single(rows) == {"kl_noise_floor": 0.001, "kl_fast_copy": 0.03, "top1_fast_copy": 0.9}
    found = fidelity.of_drift(rows)
    assert found["drift_fast_copy"] == found["drift_w_fast_copy"] == 2.0
    assert found["max_kl_w_fast_copy"] == 0.02


def test_greedy_rounds_are_counted_over_all_workloads() -> None:
    rows = [
        {"context": "greedy", "level": level, "rounds": 4, "rounds_same": same}
        for level, same in ((fidelity.FLOOR, 4), (fidelity.FLOOR, 3), ("fast", 1), ("fast", 3))
    ]
    assert fidelity.of_greedy(rows) == {"rounds_same_noise_floor": 0.875, "rounds_same_fast": 0.5}


def test_the_first_difference_is_the_earliest_token() -> None:
    expected = [[1, 2, 3], [4, 5, 6]]
    assert greedy.first_difference(expected, [[1, 2, 3], [4, 5, 6]]) is None
    assert greedy.first_difference(expected, [[1, 2, 9], [4, 9, 6]]) == (1, 1)
    with pytest.raises(ValueError, match="zip"):
        greedy.first_difference(expected, [[1, 2], [4, 5, 6]])


METRICS = """# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="bench"} 0.25
vllm:num_requests_running{engine="0",model_name="bench"} 3.0
"""


def test_kv_usage_is_read_from_the_servers_metrics() -> None:
    assert motivation.usage_of(METRICS) == 0.25
    assert motivation.usage_of("vllm:other 1") is None


def test_motivation_compares_both_kinds() -> None:
    rows = [
        *({"kind": "rounds", "index": n, "latency_s": 4.0} for n in range(3)),
        *({"kind": "independent", "index": n, "latency_s": 2.0} for n in range(3)),
        {"kind": "rounds", "peak_kv_share": 0.9},
        {"kind": "independent", "peak_kv_share": 0.6},
    ]
    found = motivation.compared(rows)
    assert found["p99_latency_s_rounds_over_independent"] == 2.0
    assert found["peak_kv_share_rounds_over_independent"] == 1.5


def test_arrivals_are_a_poisson_process_that_starts_at_once() -> None:
    found = arrivals(4.0, 4001, seed=1)
    assert found[0] == 0
    assert found == sorted(found)
    assert found[-1] / 4000 == pytest.approx(0.25, rel=0.06)  # mean gap; standard error 1.6 %
    assert found == arrivals(4.0, 4001, seed=1)
    assert arrivals(0.0, 3, seed=1) == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="allowed"):
        arrivals(-1.0, 3, 0)


def test_sessions_of_one_trace_share_no_text() -> None:
    workload = synthetic(Shape(agents=2, rounds=3))
    one, other = distinct(workload, "s1"), distinct(workload, "s2")
    for a, b in zip(one.agents, other.agents, strict=True):
        first, second = (w.prompt(x, 2).plain_messages for w, x in ((one, a), (other, b)))
        assert first != second
    assert not {b.text for b in one.shared(2)} & {b.text for b in other.shared(2)}


def test_goodput_counts_whole_rounds_within_the_target() -> None:
    found = summary([Served(0, 0, 1), Served(1, 1, 4), Served(2, 3, 3, failed=1), Served(2, 4, 4)], slo=2.0)
    assert found["within_slo"] == 2
    assert found["goodput_rounds_per_s"] == 0.5
    assert found["waited_s"] == 0.75
    assert found["latency_s"] == 1.5
    assert found["failed"] == 1
