"""Stored members back into vLLM's pages: the connector's fused pass against rebuilding dense caches first.

Dense is what a store of diffs does without a kernel of its own: copy the master's rows, overwrite what differs, rotate
the keys, write all of it into pages; every step with the same compiled kernels, threads and page writer. A plain copy
of as many bytes runs beside both, in turn. No engine and no model: rows are random, shapes are the demo model's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tokendance_bench.environment import environment
from tokendance_bench.options import parser
from tokendance_bench.restore_family import Family, family
from tokendance_bench.results import print_rows, write_results


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("restore", __doc__ or "", "none", 10)
    options.add_argument("--members", type=int, nargs="+", default=[3, 5, 10])
    options.add_argument("--shared-tokens", type=int, default=3700, help="rows of the master")
    options.add_argument(
        "--own", type=float, default=0.08, help="share of a member's tokens that are its own"
    )
    options.add_argument("--layers", type=int, default=4, help="layers; every one does the same work")
    options.add_argument("--repeats", type=int, default=15)
    args = options.parse_args(argv)
    members = [max(args.members)] if args.quick else args.members
    dtype = getattr(torch, args.dtype)
    made = family(max(members), args.shared_tokens, args.own, args.layers, 3, 64, dtype)
    threads = _same_threads()
    rows = [measure(made, n, 7 if args.quick else args.repeats) for n in members]
    made.scribble()
    fused(made, max(members))
    wrong = made.wrong_pages()
    made.scribble()
    dense(made, max(members))
    last = rows[-1]
    headline = {
        f"fused_over_dense_n{last['members']}": last["fused_over_dense"],
        "share_of_copy_bandwidth": last["share_of_copy"],
        "bit_exact": wrong == 0,
        "dense_wrong_pages": made.wrong_pages(),
    }
    where = environment(dtype=args.dtype, threads=threads, heads=3, dim=64, layers=args.layers, seed=0)
    path = write_results(args.out, headline, rows, where)
    print_rows("restore", rows)
    print_rows("headline", [headline])
    print(f"written to {path}")
    return 0 if wrong == 0 else 1


def _same_threads() -> int:
    import numba

    torch.set_num_threads(numba.get_num_threads())
    return int(numba.get_num_threads())


def measure(made: Family, members: int, repeats: int) -> dict[str, Any]:
    """Seconds for all members' pages, systems in turn; ratios are medians over the turns."""
    some = made.kv.layers[0].cache
    size = members * made.tokens * some.shape[1] * some.shape[3] * some.element_size() * len(made.kv.layers)
    source, target = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    systems: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "fused": lambda: fused(made, members),
        "dense": lambda: dense(made, members),
    }
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(repeats + 1):  # the first one compiles and touches memory
        for name, run in systems.items():
            started = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    over = [d / f for d, f in zip(seconds["dense"], seconds["fused"], strict=True)]
    share = [c / f for c, f in zip(seconds["copy"], seconds["fused"], strict=True)]
    return {
        "members": members,
        "tokens": made.tokens,
        "mb": round(size / 1e6),
        **{f"{name}_ms": round(statistics.median(s) * 1e3, 1) for name, s in seconds.items()},
        **{f"{name}_best_ms": round(min(s) * 1e3, 1) for name, s in seconds.items()},
        "fused_over_dense": round(statistics.median(over), 2),
        "fused_over_dense_range": [round(min(over), 2), round(max(over), 2)],
        "share_of_copy": round(statistics.median(share), 2),
        "share_of_copy_best": round(min(seconds["copy"]) / min(seconds["fused"]), 2),
        "repeats": repeats,
    }


def fused(made: Family, members: int) -> None:
    """As the connector brings members back."""
    from tokendance_engine.adapters.vllm.mirror_pages import write

    for i, table in enumerate(made.tables[:members]):
        write(made.kv, made.store.restore(made.key, f"a{i}", 0, made.tokens), table)


def dense(made: Family, members: int) -> None:
    """A dense cache of every member first, then its pages."""
    from tokendance_engine.kernels.cpu_moves import Runs, move
    from tokendance_engine.kernels.cpu_planes import PackedPlane

    def moved(source: torch.Tensor, rows: Any, target: torch.Tensor, at: Any) -> None:
        page = np.zeros(len(rows), dtype=np.int64)
        move(PackedPlane.of_rows(source), PackedPlane.of_rows(target), Runs.of(page, rows, page, at))

    n, every = made.tokens, np.arange(made.tokens)
    some = made.kv.layers[0].cache
    cache = torch.empty(2, n, some.shape[1], some.shape[3] // 2, dtype=some.dtype)
    for i, table in enumerate(made.tables[:members]):
        work = made.store.restore(made.key, f"a{i}", 0, n)
        old, new = every.copy(), every
        for gather in work.gathers:
            old[gather.tokens] = gather.old
        place = made.kv.placing(every, table, every, every, every)
        for layer in range(len(made.kv.layers)):
            for gather in work.gathers:
                for plane, source in zip(cache, gather.segment.rows.layer(layer), strict=True):
                    moved(source, gather.rows, plane, gather.tokens)
            for copy in work.copies:
                for plane, source in zip(cache, copy.layer(layer), strict=True):
                    moved(source, np.arange(len(copy.tokens)), plane, copy.tokens)
            place(layer, made.kv.remake(layer, cache[0], old, new), cache[1])


if __name__ == "__main__":
    raise SystemExit(main())
