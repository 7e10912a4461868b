"""The key/value cache of a vLLM worker on the CPU, whose memory others use while the policy trains."""

from __future__ import annotations

from typing import Any

from rlvr.allocator import discard


class CacheHolder:
    """Mixed into vLLM's worker (`worker_extension_cls`)."""

    model_runner: Any

    def discard_cache(self) -> None:
        """Gives the memory of the key/value cache back; it is taken again page by page as it is written."""
        for cache in self.model_runner.kv_caches:
            storage = cache.untyped_storage()
            discard(storage.data_ptr(), storage.nbytes())
