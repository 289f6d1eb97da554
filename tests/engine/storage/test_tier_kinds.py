"""Every kind of tier: what is put is read back or missed, and nothing a disk or a server does raises."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from tier_servers import RedisServer
from tokendance_engine.storage.disk_tier import DiskTier
from tokendance_engine.storage.errors import TierError
from tokendance_engine.storage.redis_tier import PREFIX, RedisTier
from tokendance_engine.storage.tier_config import Later, Stack, open_tier
from tokendance_engine.storage.tiers import Got, MemoryTier, Tier


def blob(seed: int, size: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def name(i: int) -> bytes:
    return bytes([i]) * 16


def read(tier: Tier, which: bytes, size: int = 1000) -> np.ndarray | Got:
    into = np.zeros(size, dtype=np.uint8)
    got = tier.get(which, into)
    return into if got is Got.HIT else got


def test_a_blob_comes_back_as_it_was(tier: Tier) -> None:
    for i in range(3):
        assert tier.put(name(i), blob(i))
    for i in (2, 0, 1):
        assert tier.has(name(i))
        assert np.array_equal(read(tier, name(i)), blob(i))


def test_what_is_not_there_is_absent_and_harms_nothing_after_it(tier: Tier) -> None:
    assert read(tier, name(7)) is Got.ABSENT
    assert not tier.has(name(7))
    tier.delete([name(7)])
    assert tier.put(name(1), blob(1))
    assert np.array_equal(read(tier, name(1)), blob(1))


def test_the_caller_may_reuse_its_buffer_at_once(tier: Tier) -> None:
    buffer = blob(1)
    assert tier.put(name(1), buffer)
    buffer[:] = 0
    assert np.array_equal(read(tier, name(1)), blob(1))


@pytest.mark.parametrize("size", [1001, 4096])
def test_a_blob_shorter_than_expected_is_broken_and_harms_nothing_after_it(tier: Tier, size: int) -> None:
    tier.put(name(1), blob(1))
    tier.put(name(2), blob(2))
    assert read(tier, name(1), size) is Got.BROKEN
    assert np.array_equal(read(tier, name(2)), blob(2))


def test_a_deleted_blob_is_gone_and_its_name_can_be_used_again(tier: Tier) -> None:
    tier.put(name(1), blob(1))
    tier.delete([name(1), name(5)])
    assert read(tier, name(1)) is Got.ABSENT
    assert tier.put(name(1), blob(2))
    assert np.array_equal(read(tier, name(1)), blob(2))


def test_a_memory_tier_holds_its_capacity_and_forgets_the_least_recently_used() -> None:
    tier = MemoryTier(2500)
    for i in range(2):
        tier.put(name(i), blob(i))
    assert tier.has(name(0))
    assert tier.put(name(2), blob(2))
    assert not tier.has(name(1))
    assert tier.used <= 2500
    assert not tier.put(name(3), blob(3, 2501))


def test_a_disk_tier_finds_its_blobs_after_a_restart_and_counts_them(tmp_path: Path) -> None:
    pytest.importorskip("lmcache")
    first = DiskTier(tmp_path, 3500)
    for i in range(3):
        assert first.put(name(i), blob(i))
    first.close()
    second = DiskTier(tmp_path, 3500)
    second.check()
    assert second.used == 3000
    assert np.array_equal(read(second, name(2)), blob(2))
    assert second.put(name(3), blob(3))
    second.check()
    assert second.used == 3000
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == 3000
    second.close()
    third = DiskTier(tmp_path, 1500)
    third.check()
    assert third.used == 1000
    third.close()


def test_files_that_vanish_or_a_folder_that_is_gone_are_misses(tmp_path: Path) -> None:
    pytest.importorskip("lmcache")
    tier = DiskTier(tmp_path / "kv", 1 << 20)
    tier.put(name(1), blob(1))
    shutil.rmtree(tmp_path / "kv")
    assert read(tier, name(1)) is Got.ABSENT
    assert not tier.put(name(2), blob(2))
    assert not tier.has(name(2))
    (tmp_path / "kv").mkdir()
    assert tier.put(name(2), blob(2))
    tier.check()
    tier.close()


def test_a_full_disk_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    pytest.importorskip("lmcache")
    if (
        shutil.which("mount") is None
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("needs the right to mount a small file system")
    try:
        tier = DiskTier(tmp_path, 1 << 20)
        assert tier.put(name(1), blob(1, 30_000))
        assert not tier.put(name(2), blob(2, 60_000))
        assert not tier.has(name(2))
        assert np.array_equal(read(tier, name(1), 30_000), blob(1, 30_000))
        tier.check()
        tier.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_redis_server_that_stops_is_missed_at_once_and_used_again_when_it_is_back(
    redis_server: RedisServer,
) -> None:
    tier = RedisTier(redis_server.url, timeout_seconds=1.0, pause_seconds=0.2)
    assert tier.put(name(1), blob(1))
    redis_server.stop()
    started = time.monotonic()
    assert read(tier, name(1)) is Got.ABSENT
    for i in range(100):
        assert not tier.put(name(i), blob(i))
        assert not tier.has(name(i))
    assert time.monotonic() - started < 5
    assert tier.breaker.failures >= 1
    redis_server.start()
    end = time.monotonic() + 10
    while not tier.put(name(2), blob(2)) and time.monotonic() < end:
        pass
    assert np.array_equal(read(tier, name(2)), blob(2))
    tier.close()


def test_blobs_in_redis_expire_when_a_time_is_set_and_using_them_prolongs_it(
    redis_server: RedisServer,
) -> None:
    tier = RedisTier(redis_server.url, ttl_seconds=1000)
    tier.put(name(1), blob(1))
    key = PREFIX + name(1)
    assert 0 < tier._client.ttl(key) <= 1000
    tier._client.expire(key, 5)
    assert tier.has(name(1))
    assert tier._client.ttl(key) > 5
    tier.close()


def test_a_stack_writes_to_all_and_reads_from_the_first_that_has_it() -> None:
    upper, lower = MemoryTier(1500), MemoryTier(1 << 20)
    stack = Stack([upper, lower])
    assert stack.put(name(1), blob(1))
    assert stack.put(name(2), blob(2))
    assert not upper.has(name(1))
    assert np.array_equal(read(stack, name(1)), blob(1))
    stack.delete([name(1)])
    assert read(stack, name(1)) is Got.ABSENT


def test_a_tier_that_is_still_opening_holds_nothing_and_one_that_fails_says_why() -> None:
    inner = MemoryTier(1 << 20)
    later = Later(lambda: inner)
    assert later.wait(5)
    assert later.put(name(1), blob(1))
    assert np.array_equal(read(later, name(1)), blob(1))
    failing = Later(lambda: open_tier({"type": "disk", "path": "x"}))
    assert not failing.wait(5)
    assert "capacity_gb" in str(failing.error)
    assert not failing.put(name(1), blob(1))
    assert read(failing, name(1)) is Got.ABSENT


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "has no type"),
        ([], "empty list"),
        ({"type": "disk", "path": "x"}, "missing settings"),
        ({"type": "memory", "capacity_gb": -1}, "at least 0"),
        ({"type": "memory", "capacity_gb": True}, "at least 0"),
        ({"type": "redis", "url": 5}, "a text"),
        ({"type": "redis", "url": "redis://h", "colour": 1}, "colour"),
        ({"type": "redis", "url": "ftp://user:hidden@host"}, "tier address 'host'"),
    ],
)
def test_wrong_settings_are_named(spec: object, says: str) -> None:
    with pytest.raises(TierError, match=says) as caught:
        open_tier(spec)  # type: ignore[arg-type]
    assert "hidden" not in str(caught.value)


def test_an_unknown_type_is_left_to_lmcache_which_does_not_know_it_either() -> None:
    pytest.importorskip("lmcache")
    with pytest.raises(TierError, match="tape"):
        open_tier({"type": "tape"})


def test_every_rank_has_a_folder_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("lmcache")
    spec = {"type": "disk", "path": str(tmp_path), "capacity_gb": 0.01}
    tiers = [open_tier(spec, rank) for rank in (0, 1)]
    tiers[0].put(name(1), blob(1))
    assert not tiers[1].has(name(1))
    for tier in tiers:
        tier.close()
