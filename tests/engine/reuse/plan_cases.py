"""Members' prompts as the planner sees them: some segments line up with a master's pages, some do not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from tokendance_engine.reuse.backends import Backend, make_backend
from tokendance_engine.reuse.plan import Context, Plan, make_plan
from tokendance_engine.reuse.selection import Reused
from tokendance_engine.segments.frame import IN_PLACE

PAGE = 16


@dataclass(frozen=True)
class Case:
    context: Context
    found: list[Reused]
    tail: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Rows of neighbours may follow on or jump, also in their positions; a segment may stand where its rows stand."""
    at, found = 0, list[Reused]()
    row, frame, master = draw(st.integers(1, 40)), IN_PLACE, IN_PLACE
    kinds = st.sampled_from(["follow", "follow", "aligned", "aligned", "jump", "skip", "master skips"])
    lengths = st.sampled_from([1, 7, 16, 33, 60])
    for kind, gap, length in draw(
        st.lists(st.tuples(kinds, st.sampled_from([0, 0, 1, 7, 30]), lengths), max_size=6)
    ):
        at += gap
        if kind == "jump":
            row += draw(st.sampled_from([1, 3, 200]))
        elif kind == "aligned":
            row += PAGE + (at - row) % PAGE
            ahead = row + master.shift - at - frame.shift
            if ahead < 0:
                master = master.stepped(row, master.shift - ahead)
            elif at > (frame.steps[-1][0] if frame.steps else -1):
                frame = frame.stepped(at, frame.shift + ahead)
        elif kind == "skip" and at > (frame.steps[-1][0] if frame.steps else -1):
            frame = frame.stepped(at, frame.shift + draw(st.integers(1, 40)))
        elif kind == "master skips" and row > (master.steps[-1][0] if master.steps else -1):
            master = master.stepped(row, master.shift + draw(st.integers(1, 40)))
        found.append(Reused(at, at + length, row))
        at, row = at + length, row + length
    size = at + draw(st.integers(0 if at else 1, 40))
    cached = draw(st.integers(0, (size - 1) // PAGE)) * PAGE
    context = Context(size, cached, PAGE, frame, master, draw(st.sampled_from([True, True, True, False])))
    return Case(context, found, draw(st.sampled_from([0, 1, 8, 64])))


backends = st.builds(
    lambda name, first: make_backend(name, first, {}),
    st.sampled_from(["master", "master", "master", "all"]),
    st.sampled_from([0, 0, 3, 20, 40]),
)


def plan_of(case: Case, backend: Backend, share: bool | None = None) -> Plan:
    context = case.context if share is None else replace(case.context, share=share)
    return make_plan(context, case.found, backend, case.tail)


def copied(plan: Plan) -> dict[int, int]:
    """Prompt index -> master row of what is restored; fails if an index is restored twice."""
    pairs = [(index + i, row + i) for row, index, n in plan.restore.tolist() for i in range(n)]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def shared_tokens(plan: Plan) -> dict[int, int]:
    """Prompt index -> master row of what stands in pages of the master."""
    return {page * PAGE + i: other * PAGE + i for page, other in plan.shared.tolist() for i in range(PAGE)}


def taken(plan: Plan) -> dict[int, int]:
    """Prompt index -> master row of all that is reused; fails if an index is both shared and restored."""
    shared, restored = shared_tokens(plan), copied(plan)
    assert not shared.keys() & restored.keys()
    return shared | restored


def computed(plan: Plan) -> list[int]:
    return [p for start, end in plan.compute.tolist() for p in range(start, end)]
