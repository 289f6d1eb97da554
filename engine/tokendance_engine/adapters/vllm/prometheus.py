"""Our metrics on vLLM's own `/metrics`: through the public stats and Prometheus hooks of KV connectors."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from tokendance_engine.observe.metrics import (
    CATALOGUE,
    OTHER,
    PREFIX,
    Metric,
    Record,
    empty,
    is_empty,
    merge,
    summary,
)


class TokenDanceStats(KVConnectorStats):
    """A record of `observe.metrics`, on its way from a step to the loggers."""

    def __init__(self, data: Record | None = None) -> None:
        super().__init__(data=data if data else empty())

    def reset(self) -> None:
        self.data = empty()

    def aggregate(self, other: KVConnectorStats) -> TokenDanceStats:
        return TokenDanceStats(merge(self.data, other.data))

    def reduce(self) -> dict[str, int | float]:
        return summary(self.data)

    def is_empty(self) -> bool:
        return is_empty(self.data)


class TokenDanceProm(KVConnectorPromMetrics):
    """The Prometheus collectors of one API server process.

    Every family has vLLM's own labels (model, engine) and at most one more; each of its values exists from the start,
    so that rates are right from the first event on.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._types = {kind.__name__.lower(): metric_types[kind] for kind in (Counter, Gauge, Histogram)}
        self._children = {
            (name, engine, value): child
            for name, metric in CATALOGUE.items()
            for (engine, value), child in self._make(metric).items()
        }
        self._levels: dict[tuple[str, int], dict[str, float]] = {}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        record = merge(empty(), transfer_stats_data)
        for name, values in record["observed"].items():
            for value in values:
                self._children[name, engine_idx, ""].observe(value)
        for name, counted in record["counted"].items():
            for label, n in counted.items():
                self._children[name, engine_idx, label].inc(n)
        for name, levels in record["levels"].items():
            known = self._levels.setdefault((name, engine_idx), {})
            known.update(levels)
            self._children[name, engine_idx, ""].set(sum(known.values()))

    def _make(self, metric: Metric) -> dict[tuple[int, str], Any]:
        extra: dict[str, Any] = {}
        if metric.kind == "histogram":
            extra["buckets"] = list(metric.buckets)
        elif metric.kind == "gauge":
            extra["multiprocess_mode"] = "mostrecent"
        names = [*self._labelnames, *([metric.label] if metric.label else [])]
        made = self._types[metric.kind](
            name=PREFIX + metric.name, documentation=metric.help, labelnames=names, **extra
        )
        return {
            (engine, value): made.labels(*labels, *([value] if metric.label else []))
            for engine, labels in self.per_engine_labelvalues.items()
            for value in ((*metric.values, OTHER) if metric.label else ("",))
        }
