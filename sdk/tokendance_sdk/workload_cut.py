"""Cutting a workload to a stated size, by tokens of the model that will read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tokendance_sdk.workload import Workload, WorkloadAgent, WorkloadError, WorkloadRound

Encode = Callable[[str], Sequence[int]]
"""Text to token ids, without special tokens."""
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Cut:
    """How much of a workload is used; None leaves a dimension whole.

    Attributes:
        agents, rounds: the first so many of them.
        history_tokens: longest private history of one agent in the last round (system prompt, own earlier
            outputs and private text included; joining them adds a few tokens).
        block_tokens: longest output.
        shortened: filled in by `cut`: what was shortened, for people.
    """

    agents: int | None = None
    rounds: int | None = None
    history_tokens: int | None = None
    block_tokens: int | None = None
    shortened: str = ""

    def __post_init__(self) -> None:
        for name in ("agents", "rounds", "history_tokens", "block_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise WorkloadError(f"{name} is {value}; allowed: at least 1, or nothing for no cut")

    def describe(self) -> str:
        """One line to stand beside every number measured with this cut."""
        parts = [
            text.format(value)
            for text, value in (
                ("first {} agents", self.agents),
                ("first {} rounds", self.rounds),
                ("history <= {} tokens", self.history_tokens),
                ("blocks <= {} tokens", self.block_tokens),
            )
            if value is not None
        ]
        return "; ".join(filter(None, [", ".join(parts) or "uncut", self.shortened]))


def cut(
    workload: Workload, size: Cut, encode: Encode | None = None, decode: Decode | None = None
) -> Workload:
    """`workload` cut to `size`; the result's `cut` says what was done. The input is not changed.

    Half of `history_tokens` (more if the rest is not needed) goes to system prompt and history, the other
    half in equal parts to what each round adds, so that histories grow evenly and what stands in them stays.

    Raises:
        WorkloadError: more agents or rounds than there are, or a cut by tokens without `encode` and `decode`.
    """
    for name, there in (("agents", len(workload.agents)), ("rounds", len(workload.rounds))):
        asked = getattr(size, name)
        if asked is not None and asked > there:
            raise WorkloadError(f"workload {workload.name!r} has {there} {name}, {asked} were asked for")
    agents = workload.agents[: size.agents]
    ids = [agent.id for agent in agents]
    rounds = [_only(r, ids) for r in workload.rounds[: size.rounds]]
    notes: list[str] = []
    if size.block_tokens is not None or size.history_tokens is not None:
        if encode is None or decode is None:
            raise WorkloadError(
                "cutting by tokens needs a tokenizer (encode and decode); name one, or cut nothing"
            )
        knife = _Knife(encode, decode)
        if size.block_tokens is not None:
            rounds, count = _cut_blocks(rounds, size.block_tokens, knife)
            notes.append(f"{count} of {len(rounds) * len(ids)} blocks shortened")
        if size.history_tokens is not None:
            whole = agents
            agents, rounds = _cut_histories(agents, rounds, size.history_tokens, knife)
            count = sum(a != b for a, b in zip(whole, agents, strict=True))
            notes.append(f"{count} of {len(ids)} seed histories shortened")
    return replace(
        workload, agents=agents, rounds=tuple(rounds), cut=replace(size, shortened=", ".join(notes))
    )


@dataclass(frozen=True, slots=True)
class _Knife:
    encode: Encode
    decode: Decode

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def trim(self, text: str, tokens: int) -> str:
        """The longest head of `text` found with at most `tokens` tokens and whole characters only."""
        ids = self.encode(text)
        if len(ids) <= tokens:
            return text
        for keep in range(tokens, 0, -1):
            # A token may end inside a character, and a head may tokenize longer than it did inside the text.
            head = self.decode(ids[:keep]).rstrip("\ufffd")
            if head and self.count(head) <= tokens:
                return head
        return ""


def _only(played: WorkloadRound, ids: list[str]) -> WorkloadRound:
    outputs = {agent: played.outputs[agent] for agent in ids}
    return replace(
        played,
        outputs=outputs,
        own={agent: played.own[agent] for agent in ids},
        private={agent: text for agent, text in played.private.items() if agent in outputs},
        carried=tuple(agent for agent in played.carried if agent in outputs),
        speaking_order=tuple(agent for agent in played.speaking_order if agent in outputs),
    )


def _cut_blocks(rounds: list[WorkloadRound], tokens: int, knife: _Knife) -> tuple[list[WorkloadRound], int]:
    result, count = [], 0
    for played in rounds:
        outputs = {agent: knife.trim(text, tokens) for agent, text in played.outputs.items()}
        count += sum(outputs[agent] != text for agent, text in played.outputs.items())
        empty = [agent for agent, text in outputs.items() if not text]
        if empty:
            raise WorkloadError(
                f"block_tokens is {tokens}: too few for one character of {empty[0]!r} in round {played.index}"
            )
        result.append(replace(played, outputs=outputs, own=outputs))
    return result, count


def _cut_histories(
    agents: Sequence[WorkloadAgent], rounds: list[WorkloadRound], tokens: int, knife: _Knife
) -> tuple[tuple[WorkloadAgent, ...], list[WorkloadRound]]:
    growing = rounds[:-1]  # the last round's output is in nobody's history
    seeds: list[WorkloadAgent] = []
    own: list[dict[str, str]] = [{} for _ in growing]
    private: list[dict[str, str]] = [{} for _ in growing]
    for agent in agents:
        growth = sum(knife.count(r.own[agent.id]) + knife.count(r.private.get(agent.id, "")) for r in growing)
        seed_tokens = max(tokens // 2, tokens - growth) if growing else tokens
        seed, used = _cut_seed(agent, seed_tokens, knife)
        seeds.append(seed)
        share = (tokens - used) // len(growing) if growing else 0
        for t, played in enumerate(growing):
            own[t][agent.id] = knife.trim(played.own[agent.id], share)
            left = share - knife.count(own[t][agent.id])
            private[t][agent.id] = knife.trim(played.private.get(agent.id, ""), left)
    cut_rounds = [replace(r, own=o, private=p) for r, o, p in zip(growing, own, private, strict=True)]
    return tuple(seeds), [*cut_rounds, *rounds[-1:]]


def _cut_seed(agent: WorkloadAgent, tokens: int, knife: _Knife) -> tuple[WorkloadAgent, int]:
    left = tokens
    kept: list[str] = []
    for piece in (agent.system, *agent.history):
        kept.append(knife.trim(piece, left))
        left -= knife.count(kept[-1])
    system, *history = kept
    return replace(agent, system=system, history=tuple(piece for piece in history if piece)), tokens - left
