"""Ask backends what only KV can tell: which reused tokens to compute after all, and what corrected K/V is.

Between the restore of a group and its virtual batch. Whether members come one by one or together changes nothing: a
member's own deviations depend on its own pages, those of a round are taken from the first member that has the tokens,
and what is learned from a round is not used in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from tokendance_engine.reuse.backends import Backend, Check, Piece, make_backend
from tokendance_engine.reuse.backends.interface import KV, Scores
from tokendance_engine.reuse.collector import passes
from tokendance_engine.reuse.fillers import runs_with_fillers
from tokendance_engine.reuse.observing import Lesson, Lessons
from tokendance_engine.reuse.plan import runs_of
from tokendance_engine.reuse.ports import Ask, MemberJob, Rows, Run, VirtualBatch
from tokendance_engine.reuse.selection import Mask
from tokendance_engine.segments.key import segment_key

_KEPT = 256
"""Most backends, and most masters' choices, remembered."""

_FEW = 8
"""A member whose undecided tokens are less than one in this many follows what others decided."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a backend did with one member.

    Attributes:
        chosen: restored tokens that are computed after all.
        checked: tokens computed up to the check layer to find out.
    """

    chosen: int = 0
    checked: int = 0


@dataclass(slots=True)
class Case:
    """A member's job while its backend is asked.

    Attributes:
        pieces: what is restored, segment by segment.
        extra: tokens to compute beyond those the plan names, bool [len(prompt)].
        uncovered: pieces that will be computed because nothing corrects them, each with what was restored.
    """

    job: MemberJob
    ask: Ask
    backend: Backend
    pieces: list[Piece]
    extra: Mask
    checked: int = 0
    uncovered: list[Lesson] = field(default_factory=list)

    def fixed(self) -> Mask:
        """Tokens the plan computes in any case."""
        return _marked(len(self.ask.prompt), self.ask.compute)

    def whole(self) -> Mask:
        """These and all that is restored."""
        mask = self.fixed()
        for piece in self.pieces:
            mask[piece.start : piece.end] = True
        return mask

    def runs(self, mask: Mask | None = None) -> list[Run]:
        """The runs that compute some tokens; by default all that must be computed."""
        mask = self.fixed() | self.extra if mask is None else mask
        ask = self.ask
        return runs_with_fillers(runs_of(mask).tolist(), ask.prompt, self.job.pages, ask.frame, ask.filling)


@dataclass(slots=True)
class _Choices:
    """What was chosen of a master's rows for all members: which are decided, and which of them are computed."""

    decided: Mask
    chosen: Mask

    def grow(self, rows: int) -> None:
        """Make room for rows [0, rows)."""
        more = max(0, rows - len(self.decided))
        self.decided, self.chosen = (np.pad(x, (0, more)) for x in (self.decided, self.chosen))


class Judge:
    """The backends of one worker.

    Args:
        rows: its pages, row by row.
        batch: its virtual batches.
    """

    def __init__(self, rows: Rows, batch: VirtualBatch) -> None:
        self._rows = rows
        self._batch = batch
        self._backends: OrderedDict[tuple[str, ...], Backend] = OrderedDict()
        self._choices: OrderedDict[tuple[int, str], _Choices] = OrderedDict()
        self._lessons = Lessons(rows)

    def open(self, jobs: Sequence[MemberJob]) -> list[Case]:
        """Decide what to compute of members whose rows are restored; corrected rows are written.

        Raises:
            ValueError: a backend's check layer does not exist, or it answers in another shape.
        """
        cases = [self._case(job, job.ask) for job in jobs if job.ask is not None]
        by_layer: dict[int, list[Case]] = {}
        for case in cases:
            check = case.backend.check
            if check is not None and check.scope == "member" and case.pieces:
                by_layer.setdefault(check.layer, []).append(case)
        for layer, same in by_layer.items():
            for case, scores in zip(same, self._scores(same, layer), strict=True):
                masks = case.backend.choose(case.pieces, scores)
                for piece, mask in zip(case.pieces, masks, strict=True):
                    case.extra[piece.start : piece.end] = mask
        for case in cases:
            if case.backend.check is not None and case.backend.check.scope == "round":
                self._follow(case, case.backend.check)
            if case.backend.corrects:
                self._correct(case)
        return cases

    def close(self, cases: Sequence[Case]) -> dict[str, Verdict]:
        """All is computed: keep what can be learned from it.

        Returns:
            Request id -> what was done.
        """
        for case in cases:
            if case.uncovered:
                key = _state_key(case.ask, case.backend)
                self._lessons.add(key, case.ask.round, case.job.pages, case.uncovered)
        return {c.job.request_id: Verdict(int(c.extra.sum()), c.checked) for c in cases}

    def _case(self, job: MemberJob, ask: Ask) -> Case:
        backend = self._backend(ask)
        if backend.check is not None and not 0 <= backend.check.layer < self._rows.layers:
            raise ValueError(
                f"check layer {backend.check.layer} of backend {backend.name!r}; allowed: 0 to {self._rows.layers - 1}"
            )
        return Case(job, ask, backend, _pieces(job, ask), np.zeros(len(ask.prompt), dtype=bool))

    def _backend(self, ask: Ask) -> Backend:
        """The session's instance; before a round begins it learns what the rounds before it have shown."""
        made = make_backend(ask.backend, 0, ask.options)
        key = _state_key(ask, made)
        made.turn = self._rows.turn
        backend = self._backends.setdefault(key, made)
        self._backends.move_to_end(key)
        if len(self._backends) > _KEPT:
            old, _ = self._backends.popitem(last=False)
            self._lessons.forget(old)
        self._lessons.teach(key, ask.round, backend)
        return backend

    def _scores(self, cases: Sequence[Case], layer: int) -> list[list[Scores]]:
        """Deviations of every piece of every case, from as few passes as the limits allow."""
        runs = [run for case in cases for run in case.runs(case.whole())]
        parts = passes(runs, self._batch.max_tokens, self._batch.max_runs)
        fresh = torch.cat([self._batch.keys(part, layer) for part in parts])
        found: list[list[Scores]] = []
        for case in cases:
            whole = case.whole()
            case.checked = int(whole.sum())
            new, fresh = fresh[: case.checked], fresh[case.checked :]
            at = np.concatenate([np.arange(p.start, p.end) for p in case.pieces])
            place = torch.from_numpy(np.cumsum(whole)[at] - 1).to(new.device)
            # The layer's own rows are still those that were restored.
            old, _ = self._rows.read(layer, case.job.pages, at)
            scores = self._batch.total((new[place].float() - old.float()).square().sum((1, 2)))
            edges = np.cumsum([len(p) for p in case.pieces])[:-1]
            found.append(np.split(scores.cpu().numpy(), edges))
        return found

    def _follow(self, case: Case, check: Check) -> None:
        """Compute what the round's first member with these tokens chose; decide it if this is the one."""
        if not case.pieces:
            return
        key = (case.job.master, case.backend.identity)
        choices = self._choices.setdefault(key, _Choices(np.zeros(0, bool), np.zeros(0, bool)))
        self._choices.move_to_end(key)
        if len(self._choices) > _KEPT:
            self._choices.popitem(last=False)
        choices.grow(max(p.row + len(p) for p in case.pieces))
        new = [p for p in case.pieces if 2 * choices.decided[p.row : p.row + len(p)].sum() < len(p)]
        if _FEW * sum(map(len, new)) >= sum(map(len, case.pieces)):
            (scores,) = self._scores([case], check.layer)
            which = [i for i, p in enumerate(case.pieces) if p in new]
            masks = case.backend.choose(new, [scores[i] for i in which])
            for piece, mask in zip(new, masks, strict=True):
                rows = slice(piece.row, piece.row + len(piece))
                choices.chosen[rows] |= mask & ~choices.decided[rows]
                choices.decided[rows] = True
        for piece in case.pieces:
            case.extra[piece.start : piece.end] = choices.chosen[piece.row : piece.row + len(piece)]

    def _correct(self, case: Case) -> None:
        covered = [p for p in case.pieces if case.backend.covers(p)]
        for piece in case.pieces:
            if piece not in covered:
                case.extra[piece.start : piece.end] = True
                at = np.arange(piece.start, piece.end)
                kept = [self._rows.read(layer, case.job.pages, at) for layer in range(self._rows.layers)]
                case.uncovered.append(Lesson(piece, kept))
        for piece in covered:
            at = np.arange(piece.start, piece.end)
            for layer in range(self._rows.layers):
                key, value = self._rows.read(layer, case.job.pages, at)
                made = case.backend.correct(piece, layer, key, value)
                self._rows.write(layer, case.job.pages, at, *_checked(case.backend, made, (key, value)))


def _checked(backend: Backend, made: KV, like: KV) -> KV:
    """Corrected K/V in the pages' shape and dtype.

    Raises:
        ValueError: it has another shape.
    """
    for new, old in zip(made, like, strict=True):
        if new.shape != old.shape:
            raise ValueError(
                f"backend {backend.name!r} corrected rows of shape {tuple(old.shape)} to {tuple(new.shape)}"
            )
    key, value = (new.to(old).contiguous() for new, old in zip(made, like, strict=True))
    return key, value


def _state_key(ask: Ask, backend: Backend) -> tuple[str, ...]:
    return (*ask.scope, backend.identity)


def _pieces(job: MemberJob, ask: Ask) -> list[Piece]:
    """What is restored, segment by segment."""
    restored = _marked(len(ask.prompt), np.column_stack([job.moves[:, 1], job.moves[:, 1] + job.moves[:, 2]]))
    pieces = []
    for start, end, row in ask.segments.tolist():
        key = segment_key(ask.prompt[start:end])
        for a, b in runs_of(restored[start:end]).tolist():
            positions = ask.frame.at(np.arange(start + a, start + b))
            pieces.append(Piece(ask.agent, ask.prompt, start + a, start + b, a, key, row + a, positions))
    return pieces


def _marked(size: int, runs: npt.NDArray[np.int64]) -> Mask:
    mask = np.zeros(size, dtype=bool)
    for start, end in runs.tolist():
        mask[start:end] = True
    return mask
