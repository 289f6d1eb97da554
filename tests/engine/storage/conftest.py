"""Settings of the storage tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tier_servers import RedisServer
from tokendance_engine.storage.disk_tier import DiskTier
from tokendance_engine.storage.redis_tier import RedisTier
from tokendance_engine.storage.tiers import MemoryTier, Tier


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are tiny here: torch's threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running server of its own."""
    server = RedisServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture(params=["memory", "disk", "redis"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tier]:
    """An empty tier of each kind."""
    made: Tier
    if request.param == "memory":
        made = MemoryTier(1 << 24)
    elif request.param == "disk":
        pytest.importorskip("lmcache")
        made = DiskTier(tmp_path / "kv", 1 << 24)
    else:
        made = RedisTier(request.getfixturevalue("redis_server").url)
    yield made
    made.close()
