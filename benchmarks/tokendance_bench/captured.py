"""What an engine's store captures, checked row by row while the pages are still there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tokendance_bench.inproc import Engine


@dataclass(slots=True)
class Captured:
    """Watches a running engine's captures.

    Attributes:
        kept: agent -> (token ids, K and V of every layer) of its last capture, while `keep` is set.
        wrong: rows that do not come back as they stood in pages.
        rows: rows that were compared, all layers of one counted once.
    """

    worker: Any
    keep: bool = False
    kept: dict[str, tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]] = field(default_factory=dict)
    wrong: int = 0
    rows: int = 0

    @classmethod
    def watch(cls, engine: Engine) -> Captured:
        """Start watching."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        made = cls(get_kv_transfer_group().worker.mirrors)
        capture = made.worker.put_mirror

        def put_mirror(job: Any) -> None:
            pages, kv = torch.from_numpy(job.pages).long(), made.worker._kv
            n = len(job.tokens)
            then = [tuple(plane[:n] for plane in kv.read(layer, pages)) for layer in kv.layers]
            capture(job)
            made.check(job, then)

        made.worker.put_mirror = put_mirror
        return made

    def check(self, job: Any, then: list[Any]) -> None:
        """Everything that was captured, re-made from the store, against what stood in pages."""
        from tokendance_engine.storage.restore import materialise

        worker, n = self.worker, len(job.tokens)
        work = worker.store.restore(worker._family(job.owner), job.owner.agent, 0, n)
        if work is None:
            raise RuntimeError(f"{job.owner.agent} was not kept; give the benchmark a larger budget")
        bad = torch.zeros(n, dtype=torch.bool)
        for layer, (key, value) in enumerate(then):
            for was, now in zip((key, value), materialise(work, layer, worker._kv.remake), strict=True):
                bad |= (
                    (was.contiguous().view(torch.uint8) != now.contiguous().view(torch.uint8))
                    .flatten(1)
                    .any(1)
                )
        self.wrong += int(bad.sum())
        self.rows += n
        if self.keep:
            self.kept[job.owner.agent] = (job.tokens, then)

    def family(self) -> Any:
        """The report of the only family."""
        (made,) = self.worker.store.report().families.values()
        return made

    def paper(self) -> tuple[float, float]:
        """Family ratio, and median ratio per mirror, of the kept captures in the paper's layout."""
        from tokendance_engine.storage.member_master import Dense, encode
        from tokendance_engine.storage.rows import Rows

        members = [
            Dense(tokens, Rows(torch.stack([torch.stack(p) for p in zip(*layers, strict=True)])))
            for tokens, layers in self.kept.values()
        ]
        made = encode(members, self.worker._kv.remake)
        dense = [m.rows.kv.nbytes + m.tokens.nbytes for m in members]
        own = [m.nbytes for m in made.mirrors]
        ratios = sorted(d / o for i, (d, o) in enumerate(zip(dense, own, strict=True)) if i != made.elected)
        return sum(dense) / (made.master.nbytes + sum(own)), ratios[len(ratios) // 2]
