"""Headers and body of an HTTP request -> its `RoundTag`, or a clear refusal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from tokendance_sdk.protocol import (
    BODY_KEY,
    EXECUTIONS,
    FIDELITIES,
    HEADER_FIELDS,
    ID_RULE,
    MAX_ROUND_SIZE,
    PLACEMENTS,
    SEPARATOR,
    Fidelity,
    RoundTag,
)

from tokendance_engine.errors import RequestRejectedError

_HEADERS = {name.lower().encode("ascii"): name for name in HEADER_FIELDS}
_NAMES_A_ROUND = frozenset({"round_id", "session_id", "round_size", "segments"})
_NO_ROUND = "auto"
_RULES = {
    "round_id": ID_RULE,
    "agent_id": ID_RULE,
    "session_id": ID_RULE,
    "round_size": f"a whole number from 1 to {MAX_ROUND_SIZE}",
    "fidelity": ", ".join(FIDELITIES),
    "placement": ", ".join(PLACEMENTS),
    "backend": "a backend's name",
    "options": "an object",
    "execution": ", ".join(EXECUTIONS),
    "segments": "a list of token offsets",
}


def has_tag_header(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether any TokenDance header is there (ASGI headers: lower-case names)."""
    return any(name.lower() in _HEADERS for name, _ in headers)


def read_tag(headers: Iterable[tuple[bytes, bytes]], body_tag: Any = None) -> RoundTag | None:
    """The tag that headers and the body's `tokendance` object give together; None if neither is there.

    Args:
        headers: ASGI headers.
        body_tag: the value of the body's `tokendance` field, or None where it has none.

    Raises:
        RequestRejectedError: 400; names the field, the value and what is allowed, or both values.
    """
    given = _from_headers(headers)
    if body_tag is None and not given:
        return None
    if body_tag is not None and not isinstance(body_tag, Mapping):
        raise _wrong(BODY_KEY, body_tag, "an object such as {'round_id': 'sim:1'}")
    body: Mapping[str, Any] = body_tag or {}
    merged = {field: value for field, (_, value) in given.items()} | dict(body)
    if "round_id" not in merged:
        raise RequestRejectedError(
            f"{BODY_KEY}.round_id: missing, but {', '.join(map(str, merged)) or 'an empty object'} is given; "
            f"allowed: {ID_RULE}",
            param=f"{BODY_KEY}.round_id",
        )
    try:
        tag = RoundTag.model_validate(merged)
    except ValidationError as error:
        raise _explain(error, given, body) from None
    for field, (header, value) in given.items():
        if field in body and getattr(tag, field) != value:
            raise RequestRejectedError(
                f"{header} is {value!r} but the body's {BODY_KEY}.{field} is {body[field]!r}; "
                "allowed: one of the two, or the same value in both",
                param=f"{BODY_KEY}.{field}",
            )
    return tag


def groups_itself(headers: Iterable[tuple[bytes, bytes]], body: Mapping[str, Any]) -> bool:
    """Whether a request asks for a round without naming one: separators in its prompts, and no round."""
    given = body.get(BODY_KEY)
    if has_tag_header(headers) or not (given is None or isinstance(given, Mapping)):
        return False
    if given is not None and not _NAMES_A_ROUND.isdisjoint(given):
        return False
    return any(SEPARATOR in text for prompt in _prompts(body) for text in _texts(prompt))


def automatic_tag(body_tag: Mapping[str, Any] | None, fidelity: Fidelity) -> RoundTag:
    """The tag of such a request, with a round id that stands for none.

    Args:
        body_tag: the value of the body's `tokendance` field, or None where it has none.
        fidelity: used if it asks for none.

    Raises:
        RequestRejectedError: 400; names the field, the value and what is allowed.
    """
    body = dict(body_tag or {})
    try:
        return RoundTag.model_validate({"fidelity": fidelity, **body, "round_id": _NO_ROUND})
    except ValidationError as error:
        raise _explain(error, {}, body) from None


def check_prompts(body: Mapping[str, Any], tag: RoundTag, max_segments: int) -> None:
    """Check separators and `segments` of a tagged request against its prompts.

    Raises:
        RequestRejectedError: 413 too many separators in one prompt; 400 `segments` that do not fit.
    """
    for prompt in _prompts(body):
        count = sum(text.count(SEPARATOR) for text in _texts(prompt)) + 1
        if count > max_segments:
            raise RequestRejectedError(
                f"prompt: got {count} segments; allowed: at most {max_segments} (max_segments)",
                status=413,
                param="prompt",
            )
    if tag.segments is None:
        return
    field = f"{BODY_KEY}.segments"
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        raise _wrong(field, tag.segments, "only with one prompt of token ids; in text use " + SEPARATOR)
    check_segments(tag.segments, len(prompt), max_segments)


def check_segments(segments: Sequence[int], prompt_tokens: int, max_segments: int) -> None:
    """Boundaries must be ascending offsets (repeats are empty segments) inside the prompt.

    Raises:
        RequestRejectedError: 400 for the wrong offsets, 413 for too many.
    """
    field = f"{BODY_KEY}.segments"
    if len(segments) + 1 > max_segments:
        raise RequestRejectedError(
            f"{field}: got {len(segments) + 1} segments; allowed: at most {max_segments} (max_segments)",
            status=413,
            param=field,
        )
    if list(segments) != sorted(segments):
        raise _wrong(field, segments, "offsets in ascending order")
    outside = [offset for offset in segments if not 0 <= offset <= prompt_tokens]
    if outside:
        raise _wrong(field, outside[0], f"offsets from 0 to {prompt_tokens}, the length of the prompt")


def _from_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, tuple[str, Any]]:
    """Field -> (header name, value)."""
    found: dict[str, tuple[str, Any]] = {}
    for raw, raw_value in headers:
        name = _HEADERS.get(raw.lower())
        if name is None:
            continue
        field = HEADER_FIELDS[name]
        value: Any = raw_value.decode("latin-1").strip()
        if field == "round_size":
            if not (value.isascii() and value.isdigit() and len(value) < 20):
                raise _wrong(name, value, _RULES[field])
            value = int(value)
        if field in found and found[field][1] != value:
            raise RequestRejectedError(
                f"{name} is given twice, as {found[field][1]!r} and as {value!r}; allowed: once", param=name
            )
        found[field] = (name, value)
    return found


def _explain(
    error: ValidationError, given: Mapping[str, tuple[str, Any]], body: Mapping[str, Any]
) -> RequestRejectedError:
    first = error.errors()[0]
    field = str(first["loc"][0])
    if field not in RoundTag.model_fields:
        return RequestRejectedError(
            f"{BODY_KEY}.{field[:140]}: unknown key; allowed: {', '.join(RoundTag.model_fields)}",
            param=f"{BODY_KEY}.{field[:140]}",
        )
    name = f"{BODY_KEY}.{field}" if field in body else given[field][0]
    value = body[field] if field in body else given[field][1]
    return _wrong(name, value, _RULES[field])


def _wrong(name: str, value: Any, rule: str) -> RequestRejectedError:
    shown = repr(value)
    return RequestRejectedError(
        f"{name}: got {shown if len(shown) <= 140 else shown[:140] + '...'}; allowed: {rule}", param=name
    )


def _prompts(body: Mapping[str, Any]) -> list[Any]:
    """The prompts of any of the three generate routes; each may be nested."""
    prompt = body.get("prompt")
    several = (
        prompt if isinstance(prompt, list) and all(isinstance(each, str) for each in prompt) else [prompt]
    )
    return [*several, body.get("messages"), body.get("input")]


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
