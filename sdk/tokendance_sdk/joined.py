"""Chat requests that frameworks made, as the arguments of one `rounds.create`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from tokendance_sdk.gathering import MemberCall
from tokendance_sdk.marking import mark_shared
from tokendance_sdk.protocol import ID_PATTERN

_NOT_SAMPLING = ("model", "messages", "stream", "stream_options", "tokendance")
_TAG_FIELDS = ("fidelity", "placement", "backend", "options", "execution")


def wire_id(name: str) -> str:
    """`name` where it is a valid id, otherwise one made from its hash: the same on every machine."""
    if ID_PATTERN.fullmatch(name):
        return name
    return "a." + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def joined_arguments(
    round_id: str,
    session_id: str,
    members: Mapping[str, MemberCall],
    fields: Mapping[str, Any],
    known: Collection[str],
) -> dict[str, Any]:
    """One round of these calls (wire id -> call): shared texts as blocks, what all want alike said once.

    Args:
        fields: of every round; a call's own go before them.
        known: ids of texts that were shared before.
    """
    first = next(iter(members.values()))
    marked, blocks = mark_shared({agent: call.body["messages"] for agent, call in members.items()}, known)
    own = {agent: {**_sampling(call.body), **tag_fields(call.body)} for agent, call in members.items()}
    common = {
        name: value
        for name, value in own[next(iter(own))].items()
        if all(name in each and each[name] == value for each in own.values())
    }
    agents = [
        {
            "agent_id": agent,
            "messages": marked[agent],
            **{name: value for name, value in each.items() if name not in common},
        }
        for agent, each in own.items()
    ]
    return {
        **fields,
        **common,
        **first.options,
        "model": first.body["model"],
        "round_id": round_id,
        "session_id": session_id,
        "blocks": blocks,
        "agents": agents,
    }


def tag_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a call's own tag chooses; ids are the round's business."""
    tag = body.get("tokendance") or {}
    return {name: tag[name] for name in _TAG_FIELDS if tag.get(name) is not None}


def _sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _NOT_SAMPLING}
