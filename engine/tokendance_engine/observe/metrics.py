"""The engine's metrics: their catalogue, and a recorder whose records merge over steps and workers.

A record is a plain dict (it travels between vLLM's processes):
`{"observed": {name: [value, ...]}, "counted": {name: {label: n}}, "levels": {name: {source: value}}}`.
Levels are kept by source (a worker, or the scheduler), so that the sum over workers is right even in a step in which
only some of them report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokendance_sdk.protocol import FallbackReason

from tokendance_engine.storage.errors import BlobError

PREFIX = "vllm:tokendance_"
OTHER = "other"
"""Label value of everything a catalogue entry does not list: labels stay bounded."""

Record = dict[str, dict[str, Any]]
"""See the module's docstring."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of the catalogue.

    Attributes:
        name: without `PREFIX`; counters get `_total` from the Prometheus client.
        label: name of its own label, or None; `values`: what the label may be, besides `OTHER`.
        buckets: upper bounds, of histograms.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    label: str | None = None
    values: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


CATALOGUE = {
    metric.name: metric
    for metric in (
        Metric(
            "group_size",
            "histogram",
            "Client requests that were planned together.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        ),
        Metric(
            "gather_seconds",
            "histogram",
            "How long each member waited for the others of its round.",
            buckets=_SECONDS,
        ),
        Metric(
            "restore_seconds",
            "histogram",
            "Restoring the reused rows of all members of one engine step (the slowest worker's time).",
            buckets=_SECONDS,
        ),
        Metric(
            "compute_seconds",
            "histogram",
            "Computing fresh and selected tokens of all members of one engine step (the slowest worker's time).",
            buckets=_SECONDS,
        ),
        Metric(
            "members",
            "counter",
            "Tagged requests that ended, by how their shared text came to be: in place (shared), copied, or neither.",
            "placement",
            ("shared", "copy", "none"),
        ),
        Metric(
            "tokens",
            "counter",
            "Prompt tokens (fillers included) of tagged requests that ended: in vLLM's cache (cached), back from a "
            "stored history (restored), taken from a master (reused), taken and computed again (recomputed), computed "
            "because nobody had them (fresh). Their sum is all of them.",
            "kind",
            ("cached", "restored", "reused", "recomputed", "fresh"),
        ),
        Metric(
            "fallbacks",
            "counter",
            "Tagged requests that reused nothing, by fallback_reason.",
            "reason",
            tuple(FallbackReason),
        ),
        Metric(
            "approximate_pages",
            "counter",
            "Pages filled approximately, or computed after such, and therefore keyed apart from exact ones.",
        ),
        Metric("families", "gauge", "Sessions the engine remembers."),
        Metric("master_bytes", "gauge", "KV of masters in vLLM's pages (bytes, all workers)."),
        Metric("stored_bytes", "gauge", "Stored histories (bytes, all workers), indexes included."),
        Metric(
            "stored_dense_bytes",
            "gauge",
            "What the same histories would take as dense caches (bytes, all workers).",
        ),
        Metric(
            "tier_lookups",
            "counter",
            "Histories looked for in a tier (each worker counts).",
            "result",
            ("hit", "miss"),
        ),
        Metric(
            "store_evictions",
            "counter",
            "Sessions that left the store's memory (each worker counts): for others, or unused for too long.",
            "cause",
            ("budget", "idle"),
        ),
        Metric(
            "corruptions",
            "counter",
            "Blobs of a tier that could not be used (each worker counts).",
            "reason",
            BlobError.REASONS,
        ),
    )
}


class Recorder:
    """Collects what happened since it was last taken. Names must be in the catalogue (KeyError)."""

    def __init__(self) -> None:
        self._record = empty()

    def observe(self, name: str, value: float) -> None:
        """One value of a histogram."""
        self._record["observed"].setdefault(CATALOGUE[name].name, []).append(value)

    def count(self, name: str, n: float = 1, label: str | None = None) -> None:
        """Add n to a counter; a label value that is not in the catalogue counts as `OTHER`."""
        metric = CATALOGUE[name]
        where = "" if metric.label is None else label if label in metric.values else OTHER
        if n:
            counted = self._record["counted"].setdefault(name, {})
            counted[where] = counted.get(where, 0) + n

    def level(self, name: str, value: float, source: str) -> None:
        """What a gauge is now, as far as `source` goes."""
        self._record["levels"].setdefault(CATALOGUE[name].name, {})[source] = value

    def take(self) -> Record | None:
        """The record, or None if nothing happened; starts a new one."""
        record, self._record = self._record, empty()
        return None if is_empty(record) else record


def empty() -> Record:
    """A record of nothing."""
    return {"observed": {}, "counted": {}, "levels": {}}


def is_empty(record: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether nothing is in it."""
    return not any(record.values())


def merge(one: Record, two: Record) -> Record:
    """Both, of two workers or of two spans of time; `two` is the later one. Neither is changed."""
    made = empty()
    for record in (one, two):
        for name, values in record.get("observed", {}).items():
            made["observed"].setdefault(name, []).extend(values)
        for name, counted in record.get("counted", {}).items():
            into = made["counted"].setdefault(name, {})
            for label, n in counted.items():
                into[label] = into.get(label, 0) + n
        for name, levels in record.get("levels", {}).items():
            made["levels"].setdefault(name, {}).update(levels)
    return made


def summary(record: Record) -> dict[str, int | float]:
    """A few numbers for vLLM's periodic log line."""
    tokens = record["counted"].get("tokens", {})
    made: dict[str, int | float] = {
        "TokenDance groups": len(record["observed"].get("group_size", ())),
        "members": sum(record["counted"].get("members", {}).values()),
        "fallbacks": sum(record["counted"].get("fallbacks", {}).values()),
    }
    made.update({f"{kind} tokens": n for kind, n in sorted(tokens.items())})
    for name in ("master_bytes", "stored_bytes"):
        if name in record["levels"]:
            made[name] = sum(record["levels"][name].values())
    return made


def metrics_table(metrics: Sequence[Metric] = tuple(CATALOGUE.values())) -> str:
    """The catalogue as a Markdown table, for the docs."""
    rows = ["| metric | type | label: values | meaning |", "|---|---|---|---|"]
    for m in metrics:
        name = f"`{PREFIX}{m.name}{'_total' if m.kind == 'counter' else ''}`"
        label = f"`{m.label}`: {', '.join(f'`{v}`' for v in (*m.values, OTHER))}" if m.label else "-"
        rows.append(f"| {name} | {m.kind} | {label} | {m.help} |")
    return "\n".join(rows)
