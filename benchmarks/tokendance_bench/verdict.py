"""What a headline number says: better or worse than what it is compared with.

Names of headline keys tell what a number is; `RULES` reads them. A number without a rule is neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Keys that match `pattern` are ratios: better above (or below) `even`.

    Attributes:
        means: the sentence for people; `{}` is the value.
    """

    pattern: str
    better: Better
    even: float
    means: str


RULES = (
    Rule(r"speedup_vs_vllm_shared_first", "higher", 1, "{} times as fast as plain vLLM"),
    Rule(r"speedup_vs_shared_first", "higher", 1, "{} times as fast as vLLM with shared blocks first"),
    Rule(r"speedup_vs_vllm", "higher", 1, "{} times as fast as plain vLLM"),
    Rule(r"max_agents_vs_", "higher", 1, "{} times as many agents within the target"),
    Rule(r"round_latency_vs_vllm", "lower", 1, "round latency is {} times plain vLLM's"),
    Rule(r"agents_running_at_once_vs_vllm", "higher", 1, "{} times as many agents at once"),
    Rule(r"live_pages_ratio", "higher", 1, "plain vLLM holds {} times the pages"),
    Rule(r"collective_over_serial|_over_serial_", "higher", 1, "{} times as fast as one request at a time"),
    Rule(r"stored_over_own_bytes", "lower", 1, "stored bytes are {} times the dense ones"),
    Rule(r"fused_over_dense", "higher", 1, "fused restore is {} times as fast"),
    Rule(r"^slowdown(_short|_long)?$", "lower", 1.01, "requests take {} times as long with the plugin"),
    Rule(r"outputs_identical|bit_exact", "higher", 1, "{}"),
    Rule(r"hit_rate_last_over_first", "higher", 0.98, "{} of the first rounds' hit rate"),
    Rule(r"(memory|latency)_last_over_first", "lower", 1.05, "{} times the first rounds'"),
    Rule(r"^drift_", "lower", 1.5, "KL of the last rounds is {} times that of the first"),
)


def rule_of(key: str) -> Rule | None:
    """The rule for a headline key."""
    return next((rule for rule in RULES if re.search(rule.pattern, key)), None)


def loses(key: str, value: Any) -> bool:
    """Whether a headline number is on the losing side of its rule."""
    rule = rule_of(key)
    if rule is None or not isinstance(value, (int, float)):
        return False
    return value < rule.even if rule.better == "higher" else value > rule.even


def losing(headline: Mapping[str, Any]) -> dict[str, str]:
    """Key -> what it says, of every number on the losing side."""
    found: dict[str, str] = {}
    for key, value in headline.items():
        rule = rule_of(key)
        if rule is not None and loses(key, value):
            found[key] = rule.means.format(value)
    return found
