"""What the SDK costs is measured as the documentation says: small here, so that it ends soon."""

from __future__ import annotations

import json
from pathlib import Path

from tokendance_bench import sdk
from tokendance_bench.instant_server import instant_server, seen
from tokendance_bench.sdk_setting import Setting
from tokendance_bench.sdk_ways import ways

AGENTS, ROUNDS = 8, 2


def test_every_way_sends_one_request_a_round_or_one_a_call() -> None:
    with instant_server() as url:
        at = Setting(url, AGENTS, ROUNDS)
        for name, way in ways(at).items():
            before = seen(url)["requests"]
            way.ours()
            assert seen(url)["requests"] - before == ROUNDS, name
            if way.instant is not None:
                way.instant()
                assert seen(url)["requests"] - before == ROUNDS, name
            if way.ordinary is not None:
                way.ordinary()
                assert seen(url)["requests"] - before == ROUNDS * (1 + AGENTS), name


def test_results_say_what_was_measured(tmp_path: Path) -> None:
    arguments = ["--agents", "4", "--rounds", "1", "--repeats", "1", "--out", str(tmp_path)]
    assert sdk.main(arguments) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert {"rounds.create", "session", "joining(AsyncOpenAI)"} <= {row["way"] for row in found["rows"]}
    assert all(row["cpu_ms"] > 0 for row in found["rows"])
    assert found["headline"]["header_bytes"] < 1024
    assert found["headline"]["most_added_cpu_ms_per_agent_and_round"] == max(
        row["added_ms"] for row in found["rows"]
    )
