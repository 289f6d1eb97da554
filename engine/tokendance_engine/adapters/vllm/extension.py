"""Methods added to vLLM's worker so that the status route can ask it (public `worker_extension_cls`)."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group


class WorkerExtension:
    """Mixed into vLLM's worker class."""

    def tokendance_release(self, salt: str, session: str) -> bool:
        """Forget a session; whether this worker held histories of it."""
        group = get_kv_transfer_group() if has_kv_transfer_group() else None
        worker = getattr(group, "worker", None)
        return bool(worker is not None and worker.release(salt, session))

    def tokendance_status(self) -> dict[str, Any]:
        """Gate result and live families of this worker."""
        group = get_kv_transfer_group() if has_kv_transfer_group() else None
        worker = getattr(group, "worker", None)
        return (
            worker.status()
            if worker is not None
            else {"reuse": False, "reason": "the connector is not active"}
        )
