"""vLLM's page pool, as far as TokenDance uses it: look pages up, take, hold, key and free them.

The one private call (`_insert_block_hash`) gives a page one more key: a page of a master is found under the key chain
of every member that shares it. vLLM removes all keys of a page when it gives the page to somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock

GROUP = 0
"""The only KV cache group there is (the support gate sees to that)."""


class PagePool:
    """Pages with reference counts; a page without references keeps its keys until somebody takes it.

    Args:
        pool: vLLM's own.

    Attributes:
        taken: pages taken so far; if it grew, a cached page that was found before may be somebody else's now.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.vllm = pool
        self.taken = 0

    @property
    def size(self) -> int:
        """All pages."""
        return int(self.vllm.num_gpu_blocks)

    @property
    def free(self) -> int:
        """Pages nobody holds, cached ones included."""
        return int(self.vllm.get_num_free_blocks())

    def lookup(self, keys: Sequence[BlockHash]) -> list[KVCacheBlock]:
        """The cached pages of the longest prefix of a key chain."""
        found: list[KVCacheBlock] = []
        for key in keys:
            blocks = self.vllm.get_cached_block(key, [GROUP])
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def take(self, n: int) -> list[KVCacheBlock]:
        """n free pages, each with one reference and no key.

        Raises:
            ValueError: fewer are free.
        """
        blocks: list[KVCacheBlock] = self.vllm.get_new_blocks(n)
        self.taken += n
        return blocks

    def hold(self, blocks: Sequence[KVCacheBlock]) -> None:
        """One more reference to each."""
        self.vllm.touch(blocks)

    def let_go(self, blocks: Iterable[KVCacheBlock]) -> None:
        """One reference less; of pages freed at once, the later ones are given away first."""
        self.vllm.free_blocks(list(blocks)[::-1])

    def key(self, block: KVCacheBlock, key: BlockHash, tokens: int) -> None:
        """Let a page be found under one more key.

        Args:
            tokens: length of the context that ends with this page.
        """
        self.vllm._insert_block_hash(make_block_hash_with_group_id(key, GROUP), block, num_tokens=tokens)
