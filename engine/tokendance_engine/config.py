"""Every setting of the engine: one frozen dataclass, from which flags, environment names and docs follow.

Sources, highest first: `--tokendance-*` flags, the `tokendance` entry of `kv_connector_extra_config`,
`TOKENDANCE_*` environment variables, defaults. All of them resolve to one `EngineConfig` before the engine
starts; every process gets it through `KVTransferConfig.kv_connector_extra_config`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any

from tokendance_sdk.protocol import (
    BODY_KEY,
    EXECUTIONS,
    FIDELITIES,
    PLACEMENTS,
    Execution,
    Fidelity,
    Limits,
    Placement,
)

from tokendance_engine.errors import ConfigError

ENV_PREFIX = "TOKENDANCE_"
FLAG_PREFIX = "--tokendance-"
_LIMITS = Limits()


NONE = "none"
"""Value of a text setting that may be absent."""


def _setting(
    default: Any,
    help: str,
    low: float = 0,
    high: float = math.inf,
    choices: tuple[str, ...] = (),
    text: str = "a name",
    check: Callable[[str], bool] = bool,
    alone: str | None = None,
) -> Any:
    """A field with the range (numbers), the choices or the check (text; `text` says what is allowed) of `parse`.

    `alone`: the value that the flag means when it is given without one; None: it needs one.
    """
    rules = {"low": low, "high": high, "choices": choices, "text": text, "check": check, "alone": alone}
    return field(default=default, metadata={"help": help, **rules})


def _is_tiers(text: str) -> bool:
    """Whether a text is `none`, a JSON object or a JSON list of objects."""
    if text == NONE:
        return True
    try:
        spec = json.loads(text)
    except ValueError:
        return False
    return isinstance(spec, dict) or (isinstance(spec, list) and all(isinstance(each, dict) for each in spec))


def _is_backend(name: str) -> bool:
    """True if there is such a PIC backend.

    Raises:
        ConfigError: there is not; lists those there are.
    """
    from tokendance_engine.reuse.backends import check_name

    check_name(name)
    return True


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The resolved settings. Times are milliseconds, sizes are tokens or bytes, shares are 0 to 1."""

    gather_ms: float = _setting(
        100.0, "A round of unknown size starts when no new member came for this long (ms).", 0, 60_000
    )
    gather_cap_ms: float = _setting(
        2000.0, "Longest wait for the missing members of a round of known size (ms).", 0, 600_000
    )
    max_round_tokens: int = _setting(
        0, "Most tokens computed for a round in one engine step; 0: vLLM's max_num_batched_tokens."
    )
    balanced_tokens: int = _setting(
        32, "Tokens recomputed at the start of each shared segment with fidelity 'balanced'."
    )
    fast_tokens: int = _setting(0, "Tokens recomputed at the start of each shared segment, fidelity 'fast'.")
    tail_tokens: int = _setting(
        0, "Tokens at the end of the last shared segment that are always computed fresh."
    )
    recompute_limit: float = _setting(
        2.5,
        "Most shared tokens that the members of a round together compute again, as a multiple of those tokens: in "
        "large rounds the budget of a segment shrinks, down to 8, so that they gain more than small ones.",
        0,
        10_000,
    )
    min_reused_tokens: int = _setting(64, "A member that would reuse fewer tokens takes vLLM's own path.")
    master_share: float = _setting(0.5, "Largest share of vLLM's KV pages that masters may hold.", 0, 1)
    default_fidelity: Fidelity = _setting(  # noqa: RUF009 (makes a field)
        "balanced", "Fidelity of requests that name none.", choices=FIDELITIES
    )
    placement: Placement = _setting(  # noqa: RUF009 (makes a field)
        "auto",
        "How members get the round's KV when they name no placement: 'auto' and 'shared' let them point to the "
        "master's pages where they can be aligned (a member that names 'shared' itself may skip any number of "
        "positions), 'copy' does not.",
        choices=PLACEMENTS,
    )
    max_skipped_positions: int = _setting(
        512, "Most positions a member may skip before a shared region with placement 'auto'."
    )
    auto_group: str = _setting(
        "off",
        "Group untagged HTTP requests that contain separators and share segments; the value is the fidelity of "
        "those that ask for none in their body ('exact', if the flag is given alone, reuses nothing for them).",
        choices=("off", *FIDELITIES),
        alone="exact",
    )
    default_backend: str = _setting(
        "master",
        "PIC backend of requests that name none.",
        text="a backend (see docs/backends.md)",
        check=_is_backend,
    )
    execution: Execution = _setting(  # noqa: RUF009 (makes a field)
        "collective",
        "How members of a round are computed: 'collective' in one pass, 'serial' each in an engine step of its own, as "
        "methods that know no rounds do.",
        choices=EXECUTIONS,
    )
    kernel: str = _setting(
        "auto",
        "What restores pages: 'auto' uses Triton on GPUs and the fused pass on CPUs, where they were verified at "
        "start; 'torch' the attention backend's own writer; 'triton' and 'triton-interpret' (any device, for tests) "
        "Triton.",
        choices=("auto", "torch", "triton", "triton-interpret"),
    )
    cpu_bytes: int = _setting(
        0,
        "Memory for members' histories between rounds (bytes, exact); 0: off, since it is taken from the host and "
        "capturing a history costs about as much as copying it.",
    )
    idle_seconds: float = _setting(3600.0, "Sessions unused for this long leave that memory.")
    tiers: str = _setting(
        NONE,
        'Where sessions go that leave that memory, as JSON: `{"type": "disk", "path": ..., "capacity_gb": ...}`, '
        "`redis`, `memory`, an adapter of LMCache, or a list of these.",
        text="JSON, or none",
        check=_is_tiers,
    )
    secret_file: str = _setting(
        NONE,
        "File with the key under which tiers are written, made if absent; without it a restarted engine finds "
        "nothing.",
        text="a path, or none",
    )
    max_agents: int = _setting(_LIMITS.max_agents, "Most agents in one /v1/rounds request.", 1, 4096)
    max_blocks: int = _setting(_LIMITS.max_blocks, "Most blocks in one /v1/rounds request.")
    max_block_bytes: int = _setting(_LIMITS.max_block_bytes, "Largest block of a /v1/rounds request (bytes).")
    max_body_bytes: int = _setting(
        _LIMITS.max_body_bytes, "Largest body of a /v1/rounds or tagged request (bytes).", 1
    )
    max_segments: int = _setting(_LIMITS.max_segments, "Separators in one prompt, plus one.", 1)

    @classmethod
    def resolve(
        cls,
        flags: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> EngineConfig:
        """Put the sources together.

        Args:
            flags: field name -> value, as given on the command line or to `llm_kwargs`.
            extra: field name -> value, the `tokendance` entry of `kv_connector_extra_config`.
            environ: environment; default: the process's own.

        Raises:
            ConfigError: an unknown name or a bad value; names the source, the value, what is allowed.
        """
        environ = os.environ if environ is None else environ
        chosen: dict[str, Any] = {}
        for each in settings():
            if env_name(each.name) in environ:
                chosen[each.name] = parse(each.name, environ[env_name(each.name)], env_name(each.name))
        for source, values in (
            (f"kv_connector_extra_config[{BODY_KEY!r}]", extra),
            ("tokendance option", flags),
        ):
            for name, value in (values or {}).items():
                chosen[name] = parse(name, value, f"{source} {name!r}")
        return cls(**chosen)

    @classmethod
    def from_extra_config(
        cls, extra_config: Mapping[str, Any] | None, environ: Mapping[str, str] | None = None
    ) -> EngineConfig:
        """The configuration in force, from `KVTransferConfig.kv_connector_extra_config` as a whole.

        Raises:
            ConfigError: as `resolve`, and if the `tokendance` entry is not an object.
        """
        extra = (extra_config or {}).get(BODY_KEY, {})
        if not isinstance(extra, Mapping):
            raise ConfigError(f"kv_connector_extra_config[{BODY_KEY!r}]: got {extra!r}; allowed: an object")
        return cls.resolve(extra=extra, environ=environ)

    def to_extra_config(self) -> dict[str, Any]:
        """As `kv_connector_extra_config`; `from_extra_config` gives the same config back."""
        return {BODY_KEY: asdict(self)}

    def limits(self) -> Limits:
        """The limits of the wire protocol that are in force."""
        return Limits(**{name: getattr(self, name) for name in Limits.model_fields})


def settings() -> tuple[Field[Any], ...]:
    """The fields of `EngineConfig`, in order; `metadata` holds help and what is allowed."""
    return fields(EngineConfig)


def env_name(name: str) -> str:
    """`gather_ms` -> `TOKENDANCE_GATHER_MS`."""
    return ENV_PREFIX + name.upper()


def flag_name(name: str) -> str:
    """`gather_ms` -> `--tokendance-gather-ms`."""
    return FLAG_PREFIX + name.replace("_", "-")


def allowed(each: Field[Any]) -> str:
    """What a setting takes, for messages, help and docs."""
    choices, low, high = each.metadata["choices"], each.metadata["low"], each.metadata["high"]
    if choices:
        return "one of " + ", ".join(choices)
    if isinstance(each.default, str):
        return str(each.metadata["text"])
    kind = "a whole number" if isinstance(each.default, int) else "a number"
    return f"{kind}, at least {low:g}" if high == math.inf else f"{kind} from {low:g} to {high:g}"


def parse(name: str, value: Any, source: str) -> Any:
    """One value, from text or already typed, as the field's type.

    Raises:
        ConfigError: no such setting, wrong type, out of range; `source` starts the message.
    """
    known = {each.name: each for each in settings()}
    if name not in known:
        raise ConfigError(f"{source}: no such setting; allowed: {', '.join(known)}")
    each = known[name]
    parsed = _convert(value, type(each.default))
    choices = each.metadata["choices"]
    if isinstance(parsed, str):
        try:
            fine = parsed in choices if choices else each.metadata["check"](parsed)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
    else:
        fine = parsed is not None and each.metadata["low"] <= parsed <= each.metadata["high"]
    if not fine:
        raise ConfigError(f"{source}: got {value!r}; allowed: {allowed(each)}")
    return parsed


def _convert(value: Any, kind: type) -> Any:
    """`value` as `kind`, or None where it is not one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if kind is str:
        return value if isinstance(value, str) else None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    if kind is int:
        return int(number) if number.is_integer() else None
    return number


def config_table() -> str:
    """The settings as a Markdown table, for the docs."""
    rows = ["| setting | flag | environment | default | allowed | meaning |", "|---|---|---|---|---|---|"]
    rows += [
        f"| `{each.name}` | `{flag_name(each.name)}` | `{env_name(each.name)}` | `{each.default}` "
        f"| {allowed(each)} | {each.metadata['help']} |"
        for each in settings()
    ]
    return "\n".join(rows)
