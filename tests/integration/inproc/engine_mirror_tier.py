"""An engine with a disk tier that is stopped and started again: `TOKENDANCE_TIER` names the folder, one for both runs.

The first run leaves a folder with histories and answers, the second one finds both.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rounds import Rounds

pytestmark = pytest.mark.server
FOLDER = Path(os.environ.get("TOKENDANCE_TIER", "/nonexistent"))
SETTINGS = {
    "tokendance": {
        "cpu_bytes": 1 << 28,
        "tiers": json.dumps({"type": "disk", "path": str(FOLDER / "kv"), "capacity_gb": 1}),
        "secret_file": str(FOLDER / "secret"),
    },
    "models": FOLDER / "models",  # what is stored belongs to a model, which is named by its folder
    "max_model_len": 1024,
    "num_gpu_blocks_override": 200,
}


@pytest.mark.parametrize("fidelity", ["exact", "fast"])
def test_histories_outlive_the_engine(rounds: Rounds, fidelity: str) -> None:
    rounds.scheduler.mirrors.reset = lambda: None  # what tests do between them would empty the folder, too
    left = FOLDER / f"{fidelity}.json"
    if os.environ.get("TOKENDANCE_TIER_DAMAGED"):
        for file in (FOLDER / "kv").rglob("*"):
            if file.is_file():
                file.write_bytes(file.read_bytes()[:-100])
    rounds.rng = type(rounds.rng)(type(rounds.rng.bit_generator)(7))
    prompts = rounds.members(histories=(100, 131, 160))
    got = rounds.play(prompts, f"{fidelity}:1", fidelity=fidelity)
    restored = [r["restored_tokens"] for r in got.reports]
    rounds.drain()
    if not left.exists():
        assert restored == [0, 0, 0]
        left.write_text(json.dumps(got.tokens))
        rounds.worker.mirrors._aside.submit(lambda: None).result()  # the round was written
        return
    if os.environ.get("TOKENDANCE_TIER_DAMAGED"):
        assert restored == [0, 0, 0]
        assert sum(rounds.worker.mirrors.status()["tier"]["broken"].values()) > 0
    else:
        assert all(n >= 96 for n in restored)
    if fidelity == "exact":
        assert got.tokens == json.loads(left.read_text())
