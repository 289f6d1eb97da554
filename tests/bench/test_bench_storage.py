"""What the benchmarks of stored bytes and of many rounds conclude from their rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokendance_bench import steady, storage


def stored_row(workload: str, **more: Any) -> dict[str, Any]:
    return {
        "workload": workload, "ratio": 5.6, "own_share": 0.08, "ratio_over_bound": 0.99, "stored_over_own": 1.01,
        "mirror_ratio_least": 9.0, "rows_compared": 100, "wrong_rows": 0, **more,
    }  # fmt: skip


def test_storage_names_the_worst_of_all_rows_and_the_fixed_points() -> None:
    rows = [
        stored_row(storage.SYNTHETIC),
        stored_row(storage.HURRICANE_CUT, mirror_ratio_least=8.5),
        stored_row("other", ratio=1.5, ratio_over_bound=0.9, stored_over_own=1.04, mirror_ratio_least=1.9),
    ]
    assert storage.headline(rows) == {
        "stored_over_own_bytes": 1.04,
        "family_ratio_over_bound": 0.9,
        "family_ratio_synthetic_n10": 5.6,
        "own_share_synthetic_n10": 0.08,
        "mirror_ratio_hurricane_fast": 8.5,
        "bit_exact": True,
        "rows_compared": 300,
    }


def test_one_wrong_row_is_not_bit_exact() -> None:
    rows = [stored_row("a"), stored_row("b", wrong_rows=1), stored_row("c")]
    assert storage.headline(rows)["bit_exact"] is False


def test_storage_leaves_out_fixed_points_that_were_not_played() -> None:
    assert storage.headline([]) == {}
    found = storage.headline([stored_row("other")])
    assert not {"family_ratio_synthetic_n10", "mirror_ratio_hurricane_fast"} & found.keys()


def test_sizes_are_those_of_the_least_and_the_middle_member() -> None:
    def mirror(ratio: float, changed: int, per_block: tuple[int, ...]) -> Any:
        return SimpleNamespace(ratio=ratio, changed=changed, blocks=10, tokens=160, per_block=per_block)

    family = SimpleNamespace(
        mirrors={"a": mirror(4.0, 5, (1, 4)), "b": mirror(2.0, 1, (0, 1)), "c": mirror(8.0, 2, (2, 0))},
        own_share=0.25, dense_bytes=900, stored_bytes=450, ratio=2.0, bound=2.5, overhead=1.001,
    )  # fmt: skip
    found = storage.sizes(family)
    assert (found["mirror_ratio_least"], found["mirror_ratio_median"]) == (2.0, 4.0)
    assert (found["changed_blocks_median"], found["changed_blocks_range"]) == (0.2, [0.1, 0.5])
    assert found["rows_per_changed_block"] == [3, 5]
    assert found["ratio_over_bound"] == 0.8
    assert found["tokens"] == 480


def test_the_synthetic_round_has_eight_percent_of_own_tokens() -> None:
    prompts = storage.synthetic()
    shared = [p.boundaries[-1] - p.boundaries[0] for p in prompts]
    assert len(prompts) == 10
    assert len(set(shared)) == 1
    own = sum(len(p.tokens) for p in prompts) - sum(shared)
    assert own / sum(len(p.tokens) for p in prompts) == pytest.approx(0.08, abs=0.005)


def steady_rows(rounds: int, late: float) -> list[dict[str, Any]]:
    """Rounds of which the last window differs by a factor from all before."""
    return [
        {
            "hit_rate": 0.5, "rss_mb": 100.0, "stored_mb": 10.0 * factor, "ms": 20.0 * factor, "cpu_ms": 5.0,
        }
        for factor in [1.0] * (rounds - steady.WINDOW) + [late] * steady.WINDOW
    ]  # fmt: skip


def test_steady_compares_the_last_rounds_with_those_after_the_start() -> None:
    found = steady.headline(steady_rows(200, 1.2))
    assert found["hit_rate_last_over_first"] == 1.0
    assert found["latency_last_over_first"] == 1.2
    assert found["memory_last_over_first"] == 1.2  # the worse of process and store
    assert found["rss_last_over_first"] == 1.0
    assert found["rounds"] == 200


def test_steady_is_not_moved_by_single_rounds() -> None:
    rows = steady_rows(200, 1.0)
    rows[-1]["ms"] = rows[60]["ms"] = 1e6
    assert steady.headline(rows)["latency_last_over_first"] == 1.0


def test_steady_says_nothing_before_there_are_rounds_to_compare() -> None:
    assert steady.headline([]) == {}
    assert steady.headline(steady_rows(3 * steady.WINDOW, 1.0)[:-1]) == {}


def test_a_store_that_filled_up_from_nothing_is_not_steady() -> None:
    rows = steady_rows(200, 1.0)
    for row in rows[:-50]:
        row["stored_mb"] = 0.0
    assert steady.headline(rows)["stored_last_over_first"] == float("inf")
