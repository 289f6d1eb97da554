"""Put member reports into responses, and the true number of cached tokens into `usage`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokendance_sdk.protocol import BODY_KEY

Report = Mapping[str, Any]
_DONE = b"[DONE]"


def take_report(output: Any) -> dict[str, Any] | None:
    """Remove the member report from a `RequestOutput` and return it; None where there is none (yet).

    Other entries of `kv_transfer_params` stay.
    """
    params = getattr(output, "kv_transfer_params", None)
    if not isinstance(params, Mapping) or not isinstance(params.get(BODY_KEY), Mapping):
        return None
    output.kv_transfer_params = {key: value for key, value in params.items() if key != BODY_KEY} or None
    return dict(params[BODY_KEY])


def add_reports(payload: dict[str, Any], reports: Sequence[Report]) -> None:
    """Add the reports to a response (or stream chunk) and correct its cached tokens, in place.

    One report becomes `payload["tokendance"]`; those of a request with several prompts become
    `payload["tokendance"]["reports"]`, in the order in which they finished. No report: nothing changes.
    """
    if not reports:
        return
    payload[BODY_KEY] = (
        dict(reports[0]) if len(reports) == 1 else {"reports": [dict(each) for each in reports]}
    )
    usage = payload.get("usage")
    if isinstance(usage, dict):
        correct_usage(usage, reports)


def correct_usage(usage: dict[str, Any], reports: Sequence[Report]) -> None:
    """Set the cached tokens to what was not computed (vLLM counts every token promised to it as cached).

    Knows the fields of chat and text completions, and those of the Responses API.
    """
    if not reports:
        return
    computed = sum(each.get("fresh_tokens", 0) + each.get("recomputed_tokens", 0) for each in reports)
    for total, details in (
        ("prompt_tokens", "prompt_tokens_details"),
        ("input_tokens", "input_tokens_details"),
    ):
        if isinstance(usage.get(total), int):
            given = usage.get(details)
            usage[details] = {
                **(given if isinstance(given, dict) else {}),
                "cached_tokens": max(0, usage[total] - computed),
            }


class StreamReporter:
    """Adds the reports to the last chunk of a server-sent event stream.

    Events pass at once until a report has come in; from then on each waits for the next one, because only
    `[DONE]` tells that the one before was the last.
    """

    def __init__(self, reports: Mapping[str, Report]) -> None:
        self._reports = reports
        self._held = b""
        self._rest = b""

    def feed(self, data: bytes, more: bool = True) -> bytes:
        """Bytes to send on now; `more` is False with the last piece of the stream."""
        if not self._reports and not self._held and not self._rest and more:
            return data
        *events, self._rest = (self._rest + data).split(b"\n\n")
        out = b"".join(self._pass(event + b"\n\n") for event in events)
        return out if more else out + self._flush()

    def _pass(self, event: bytes) -> bytes:
        value = _data_of(event)
        if value is None:
            return event
        if value == _DONE:
            held, self._held = self._held, b""
            return self._finish(held) + event
        if not self._reports:
            return event
        before, self._held = self._held, event
        return before

    def _flush(self) -> bytes:
        out = self._finish(self._held) + self._rest
        self._held = self._rest = b""
        return out

    def _finish(self, event: bytes) -> bytes:
        value = _data_of(event)
        if value is None or not self._reports:
            return event
        try:
            chunk = json.loads(value)
        except ValueError:
            return event
        if not isinstance(chunk, dict) or "error" in chunk:
            return event
        response = chunk.get("response")
        add_reports(response if isinstance(response, dict) else chunk, list(self._reports.values()))
        text = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
        return event.replace(value, text.encode("utf-8", "surrogatepass"))


def _data_of(event: bytes) -> bytes | None:
    """The value of an event's `data:` line; None for comments and other events."""
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            return line[5:].strip()
    return None
