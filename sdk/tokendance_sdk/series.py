"""Open rounds that follow one another under one session, and how such a round is sent."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI

from tokendance_sdk.async_client import AsyncTokenDance
from tokendance_sdk.blocks import Block
from tokendance_sdk.errors import PromptError, RoundStreamError
from tokendance_sdk.gathering import MemberCall, OpenRound
from tokendance_sdk.joined import joined_arguments, tag_fields, wire_id
from tokendance_sdk.marking import mark_shared
from tokendance_sdk.progress import Progress, ProgressMeter
from tokendance_sdk.protocol import ID_PATTERN, ID_RULE
from tokendance_sdk.requests import prepare
from tokendance_sdk.results import AgentResult, RoundResult, past_deadline, replaced
from tokendance_sdk.wire import ServerKind

MAX_SESSION_ID = 96
"""Characters: what follows it in a round id has room up to the protocol's limit."""

MAX_KNOWN = 16_384
"""Shared texts a series remembers (by hash): the newest."""


class RoundSeries:
    """Rounds `session_id:0`, `session_id:1`, ... of agents that call their models themselves.

    Args:
        session_id: names the family on the server; default: a new one.
        patience: seconds without a new call after which a round goes without the agents that have not called
            (they are sent later, tagged, on their own); None waits for all.
        on_round: called with every `RoundResult`, before the agents get their answers (unless they stream); what it
            raises, they get.
        retry_failed: how often members that failed on the server's side are sent again, alone.
        deadline: seconds after which stragglers are cut off.
        progress: called as members' answers end; see `RoundProgress`.
        fields: further fields of every round (`fidelity`, `backend`, `options`), as for `rounds.create`.

    Example:
        series = RoundSeries("sim-7")
        open_round = series.open(["ann", "bob"])


        async def speak(agent):
            with open_round.seat(agent):
                return await run_agent(agent)  # its client came from joining(AsyncOpenAI(...))


        await asyncio.gather(speak("ann"), speak("bob"))
        series.advance()
    """

    def __init__(
        self,
        session_id: str | None = None,
        *,
        patience: float | None = 1.0,
        on_round: Callable[[RoundResult], None] | None = None,
        retry_failed: int = 0,
        deadline: float | None = None,
        progress: Progress | None = None,
        **fields: Any,
    ) -> None:
        self.session_id = f"s.{uuid.uuid4().hex[:16]}" if session_id is None else session_id
        if not ID_PATTERN.fullmatch(self.session_id) or len(self.session_id) > MAX_SESSION_ID:
            raise PromptError(
                f"got session_id {session_id!r}; allowed: {ID_RULE}, at most {MAX_SESSION_ID} of them"
            )
        self.number = 0
        self.on_round = on_round
        self._patience = patience
        self._retries = retry_failed
        self._deadline = deadline
        self._progress = progress
        self._fields = fields
        self._known: dict[str, None] = {}
        self._kinds: dict[str, ServerKind] = {}

    @property
    def round_id(self) -> str:
        """Id of the current round: the same when it is tried again."""
        return f"{self.session_id}:{self.number}"

    def open(self, agents: Sequence[str]) -> OpenRound:
        """The current round, for these agents (names as the application knows them)."""
        return OpenRound(self, self.round_id, agents, self._patience)

    def advance(self) -> None:
        """The current round is over: the next one has the next number."""
        self.number += 1

    def state(self) -> dict[str, Any]:
        """What `load` needs, JSON types only."""
        return {"session_id": self.session_id, "round": self.number, "known": list(self._known)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where `state()` was taken."""
        self.session_id, self.number = str(state["session_id"]), int(state["round"])
        self._known = dict.fromkeys(state.get("known", ()))

    def kind(self, client: AsyncOpenAI) -> ServerKind:
        """What this client's server is, shared by all clients of one address."""
        return self._kinds.setdefault(str(client.base_url), ServerKind("auto"))

    def remember(self, ids: Sequence[str]) -> None:
        """Texts (block ids) that were shared keep their boundaries from now on."""
        self._known.update(dict.fromkeys(ids))
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def solo_body(
        self, client: AsyncOpenAI, agent: str, round_id: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        """The chat request of a call that is not part of a round's one request: the same boundaries, and a tag.

        Where the server is not known to have rounds there is neither.
        """
        marked, blocks = mark_shared({agent: body["messages"]}, self._known)
        member = {"agent_id": wire_id(agent), "messages": marked[agent]}
        fields = {**self._fields, **tag_fields(body), "blocks": blocks, "session_id": self.session_id}
        request = prepare(body["model"], round_id, [member], None, fields).request
        plain = self.kind(client).plain is not False
        messages = request.chat_body(request.agents[0], plain=plain)["messages"]
        rest = {name: value for name, value in body.items() if name != "tokendance"}
        if plain:
            return {**rest, "messages": messages}
        tag = request.tag(request.agents[0]).model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        return {**rest, "messages": messages, "tokendance": tag}

    async def send(self, opened: OpenRound) -> None:
        """Send a gathered round: one request for each server and model its members call."""
        groups: dict[tuple[str, str, str], list[MemberCall]] = {}
        for call in opened.calls:
            key = (str(call.client.base_url), call.client.api_key, str(call.body["model"]))
            groups.setdefault(key, []).append(call)
        ids = [opened.round_id, *(f"{opened.round_id}.m{n}" for n in range(1, len(groups)))]
        await asyncio.gather(*(self._send(*pair) for pair in zip(ids, groups.values(), strict=True)))

    async def _send(self, round_id: str, calls: list[MemberCall]) -> None:
        members = {wire_id(call.agent): call for call in calls}
        try:
            arguments = joined_arguments(round_id, self.session_id, members, self._fields, self._known)
            self.remember(list(arguments["blocks"]))
            owner = AsyncTokenDance(calls[0].client)
            owner.kind = self.kind(calls[0].client)
            if any(call.pieces is not None for call in calls):
                result = await self._stream(owner, members, arguments)
            else:
                result = await owner.rounds.create(
                    **arguments,
                    retry_failed=self._retries,
                    deadline=self._deadline,
                    progress=self._progress,
                )
            self.remember([Block(text).id for text in result.outputs.values() if text])
            if self.on_round is not None:
                self.on_round(result)
            for agent, call in members.items():
                call.finish(result[agent])
        except Exception as error:
            for call in calls:
                call.fail(error)
        finally:
            for call in calls:  # cancelled: nobody may wait for an answer that will not come
                call.fail(RoundStreamError(f"round {round_id!r} was cancelled"))

    async def _stream(
        self, owner: AsyncTokenDance, members: Mapping[str, MemberCall], arguments: dict[str, Any]
    ) -> RoundResult:
        meter = None
        if self._progress is not None:
            meter = ProgressMeter(self._progress, arguments["round_id"], len(members))
            meter.start()
        result = await self._read(owner, members, arguments, meter)
        again = [r.agent_id for r in result.failed if _may_retry(r) and not members[r.agent_id].started]
        if again and self._retries:
            chosen = [agent for agent in arguments["agents"] if agent["agent_id"] in again]
            later = await owner.rounds.create(
                **{**arguments, "agents": chosen}, retry_failed=self._retries - 1, deadline=self._deadline
            )
            result = replaced(result, later)
        if meter is not None:
            meter.finish(result)
        return result

    async def _read(
        self,
        owner: AsyncTokenDance,
        members: Mapping[str, MemberCall],
        arguments: dict[str, Any],
        meter: ProgressMeter | None,
    ) -> RoundResult:
        running = set(members)
        async with owner.rounds.stream(**arguments) as stream:
            try:
                async with asyncio.timeout(self._deadline) as limit:
                    async for event in stream:
                        if meter is not None:
                            meter.feed(event)
                        if event.kind != "chunk" or event.agent_id is None:
                            continue
                        members[event.agent_id].feed(event.data)
                        if event.ends_member:
                            running.discard(event.agent_id)
                            if running:  # the last one ends with the round, so that rounds do not overlap
                                members[event.agent_id].end_stream()
            except TimeoutError:
                if not limit.expired():
                    raise
                return stream.so_far(past_deadline())
            except Exception:
                for member in stream.so_far():
                    if member.ok:
                        members[member.agent_id].finish(member)
                raise
            return stream.so_far()


def _may_retry(result: AgentResult) -> bool:
    return result.error is not None and result.error.retryable
