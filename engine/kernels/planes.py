"""How kernels see K/V: planes of rows, whatever memory they lie in, and lists of rows to go through."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokendance_engine.errors import EngineError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_DIM = 256
"""Largest head size the kernels are compiled and tested for."""


class KernelArgumentError(EngineError, ValueError):
    """A kernel was given tensors it cannot take: names the argument, its value, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Planes:
    """Keys, values, or both; each [pages, heads, rows per page, dim] with any strides, None where absent.

    vLLM's CUDA pages `cache` [pages, heads, size, 2 * dim] are `Planes(cache[..., :dim], cache[..., dim:])`.

    >>> Planes.dense(torch.zeros(5, 2, 64), None).key.shape
    torch.Size([1, 2, 5, 64])
    """

    key: torch.Tensor | None
    value: torch.Tensor | None

    @classmethod
    def dense(cls, key: torch.Tensor | None, value: torch.Tensor | None) -> Planes:
        """Rows [n, heads, dim] as one page of n rows; a view, so writes reach the rows."""
        return cls(*(None if t is None else t.transpose(0, 1).unsqueeze(0) for t in (key, value)))

    def each(self) -> list[torch.Tensor]:
        """The planes that are there, key first."""
        return [t for t in (self.key, self.value) if t is not None]


@dataclass(frozen=True, slots=True)
class RowMap:
    """n rows with their counterparts, and the rotation that takes a source key to its target's position.

    Attributes:
        source_page, source_row, target_page, target_row: int64 [n].
        cos, sin: float32 [n, rot/2]; rot = 0 leaves keys as they are.
        neox: True when dimension i pairs with i + rot/2; False when 2i pairs with 2i + 1.
    """

    source_page: torch.Tensor
    source_row: torch.Tensor
    target_page: torch.Tensor
    target_row: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    neox: bool = True

    def __len__(self) -> int:
        return len(self.source_page)

    @property
    def half(self) -> int:
        """Pairs of dimensions that are rotated."""
        return int(self.cos.shape[1])

    @classmethod
    def unrotated(
        cls,
        source_page: torch.Tensor,
        source_row: torch.Tensor,
        target_page: torch.Tensor,
        target_row: torch.Tensor,
    ) -> RowMap:
        """Rows whose keys stay as they are."""
        none = torch.empty(len(source_page), 0, device=source_page.device)
        return cls(source_page, source_row, target_page, target_row, none, none)


@dataclass(frozen=True, slots=True)
class Overlay:
    """Packed rows that take the place of some source rows.

    Attributes:
        index: int32 [n], for each row of the map its packed row, or -1 for none.
        key, value: packed rows [present, heads, dim], contiguous; None where the plane is absent.
        rotate: whether packed keys are in the source's frame (rotated like source keys), or in the target's, as a
            mirror stores them (copied bit for bit).
    """

    index: torch.Tensor
    key: torch.Tensor | None
    value: torch.Tensor | None
    rotate: bool = False


def check(
    source: Planes, target: Planes, rows: RowMap, overlay: Overlay | None = None, *, same_dtype: bool = True
) -> None:
    """Everything a kernel relies on that can be seen without reading device memory.

    Page and row numbers are the caller's to get right: checking them would wait for the device.

    Raises:
        KernelArgumentError: naming the first argument that is wrong.
    """
    if not target.each():
        raise KernelArgumentError("target: neither key nor value; at least one plane is needed")
    for name, a, b in (("key", source.key, target.key), ("value", source.value, target.value)):
        _check_pair(name, a, b, same_dtype)
    if target.key is None and rows.half:
        raise KernelArgumentError(f"rows: {rows.half} rotated pairs, but there is no key plane to rotate")
    device = target.each()[0].device
    _check_rows(rows, device)
    if target.key is not None and 2 * rows.half > target.key.shape[3]:
        raise KernelArgumentError(
            f"rows.cos: {2 * rows.half} rotated dimensions; a key has {target.key.shape[3]}"
        )
    for tensor in source.each() + target.each():
        if tensor.device != device:
            raise KernelArgumentError(f"planes on {tensor.device} and {device}; all must share one device")
    if overlay is not None:
        _check_overlay(overlay, target, rows, device)


def _check_pair(name: str, source: torch.Tensor | None, target: torch.Tensor | None, same: bool) -> None:
    if (source is None) != (target is None):
        there = "source" if target is None else "target"
        raise KernelArgumentError(f"{name}: only the {there} has this plane; both or neither must")
    if source is None or target is None:
        return
    for side, tensor in (("source", source), ("target", target)):
        shape = tuple(tensor.shape)
        if tensor.dim() != 4 or not 1 <= shape[3] <= MAX_DIM:
            raise KernelArgumentError(
                f"{side}.{name}: shape {shape}; allowed: [pages, heads, rows, dim], dim 1 to {MAX_DIM}"
            )
        if tensor.dtype not in DTYPES:
            raise KernelArgumentError(f"{side}.{name}: dtype {tensor.dtype}; allowed: {_names(DTYPES)}")
    if source.shape[1] != target.shape[1] or source.shape[3] != target.shape[3]:
        raise KernelArgumentError(
            f"{name}: source {tuple(source.shape)} and target {tuple(target.shape)} differ in heads or dim"
        )
    if same and source.dtype != target.dtype:
        raise KernelArgumentError(
            f"{name}: source is {source.dtype}, target {target.dtype}; they must be equal"
        )


def _check_rows(rows: RowMap, device: torch.device) -> None:
    n = len(rows)
    for name in ("source_page", "source_row", "target_page", "target_row"):
        index = getattr(rows, name)
        if index.dtype != torch.int64 or index.shape != (n,) or not index.is_contiguous():
            raise KernelArgumentError(
                f"rows.{name}: {index.dtype} {tuple(index.shape)}; allowed: contiguous int64 [{n}]"
            )
    for name in ("cos", "sin"):
        angle = getattr(rows, name)
        if angle.dtype != torch.float32 or angle.shape != (n, rows.half) or not angle.is_contiguous():
            raise KernelArgumentError(
                f"rows.{name}: {angle.dtype} {tuple(angle.shape)}; allowed: contiguous float32 [{n}, {rows.half}]"
            )
    for name in ("source_page", "source_row", "target_page", "target_row", "cos", "sin"):
        if getattr(rows, name).device != device:
            raise KernelArgumentError(
                f"rows.{name}: on {getattr(rows, name).device}; the planes are on {device}"
            )


def _check_overlay(overlay: Overlay, target: Planes, rows: RowMap, device: torch.device) -> None:
    index = overlay.index
    if index.dtype != torch.int32 or index.shape != (len(rows),) or not index.is_contiguous():
        raise KernelArgumentError(
            f"overlay.index: {index.dtype} {tuple(index.shape)}; allowed: contiguous int32 [{len(rows)}]"
        )
    for name, packed, plane in (
        ("key", overlay.key, target.key),
        ("value", overlay.value, target.value),
    ):
        if (packed is None) != (plane is None):
            raise KernelArgumentError(f"overlay.{name}: must be given exactly when the planes have it")
        if packed is None or plane is None:
            continue
        wanted = (plane.shape[1], plane.shape[3])
        if tuple(packed.shape[1:]) != wanted or packed.dtype != plane.dtype or not packed.is_contiguous():
            raise KernelArgumentError(
                f"overlay.{name}: {packed.dtype} {tuple(packed.shape)}; allowed: contiguous {plane.dtype} "
                f"[present, {wanted[0]}, {wanted[1]}]"
            )
        if packed.device != device or index.device != device:
            raise KernelArgumentError(f"overlay.{name}: on {packed.device}; the planes are on {device}")


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
