"""Checked launchers of the Triton kernels: they look at shapes, dtypes, devices and strides, then launch.

All take `interpret=True` to run in Triton's interpreter (any device, slow). Nothing here waits for the device, except
`pack` callers, who must know how many rows there are.
"""

from __future__ import annotations

from typing import Any

import torch
from tokendance_engine.kernels.blocks import BLOCK
from tokendance_engine.kernels.planes import (
    DTYPES,
    MAX_DIM,
    KernelArgumentError,
    Overlay,
    Planes,
    RowMap,
    check,
)
from tokendance_engine.kernels.rope import RopeTable
from tokendance_engine.kernels.triton_deviation import deviation_kernel
from tokendance_engine.kernels.triton_diff import diff_kernel
from tokendance_engine.kernels.triton_restore import restore_kernel
from tokendance_engine.kernels.triton_rope import rope_kernel
from tokendance_engine.kernels.triton_runtime import runner
from tokendance_engine.kernels.tuning import pairing, power_of_two, shape_constants, tuning

NVIDIA = torch.version.hip is None


def restore(
    source: Planes, target: Planes, rows: RowMap, overlay: Overlay | None = None, *, interpret: bool = False
) -> None:
    """`reference.restore_planes`, written into `target` in place.

    Source and target may be the same memory, but no row may be both a source and a target, and no row may be a target
    twice: programs run in any order.

    Raises:
        KernelArgumentError: as `planes.check`.
    """
    check(source, target, rows, overlay)
    if not len(rows):
        return
    any_plane = target.each()[0]
    key_dim, value_dim = _dims(target)
    tuned = tuning(max(key_dim, value_dim))
    over_key, over_value = (overlay.key, overlay.value) if overlay is not None else (None, None)
    heads = any_plane.shape[1]
    runner(restore_kernel, any_plane.device, interpret)[(-(-len(rows) // tuned.rows), heads)](
        *(any_plane if t is None else t for t in (source.key, source.value, target.key, target.value)),
        *(any_plane if t is None else t for t in (over_key, over_value)),
        rows.source_page if overlay is None else overlay.index,
        *_arrays(rows),
        len(rows),
        *(stride for t in (source.key, source.value, target.key, target.value) for stride in _strides(t)),
        HEADS=heads,
        VDIM=value_dim,
        KEYS=target.key is not None,
        VALUES=target.value is not None,
        OVERLAY=overlay is not None,
        ROTATE_OVERLAY=overlay is not None and overlay.rotate,
        VDIM_P2=power_of_two(value_dim),
        T=tuned.rows,
        **tuned.options(NVIDIA),
        **pairing(rows.half, rows.neox),
        **shape_constants(key_dim, rows.half),
    )


def diff(
    source: Planes,
    target: Planes,
    rows: RowMap,
    masks: torch.Tensor | None = None,
    *,
    tolerance: float = 0.0,
    interpret: bool = False,
) -> torch.Tensor:
    """`reference.diff_reference`: block masks int32 [ceil(n / 16)].

    Args:
        masks: masks of other layers to add to, in place; None starts from zero.

    Raises:
        KernelArgumentError: as `planes.check`; masks of another shape or dtype; a negative tolerance.
    """
    check(source, target, rows)
    any_plane = target.each()[0]
    blocks = -(-len(rows) // BLOCK)
    if masks is None:
        masks = torch.zeros(blocks, dtype=torch.int32, device=any_plane.device)
    if masks.dtype != torch.int32 or masks.shape != (blocks,) or not masks.is_contiguous():
        raise KernelArgumentError(
            f"masks: {masks.dtype} {tuple(masks.shape)}; allowed: contiguous int32 [{blocks}]"
        )
    if not tolerance >= 0:
        raise KernelArgumentError(f"tolerance: {tolerance}; allowed: 0 or more")
    if not blocks:
        return masks
    key_dim, value_dim = _dims(target)
    runner(diff_kernel, any_plane.device, interpret)[(blocks,)](
        *(any_plane if t is None else t for t in (source.key, source.value, target.key, target.value)),
        masks,
        *_arrays(rows),
        len(rows),
        float(tolerance),
        *(stride for t in (source.key, source.value, target.key, target.value) for stride in _strides(t)),
        HEADS=any_plane.shape[1],
        VDIM=value_dim,
        KEYS=target.key is not None,
        VALUES=target.value is not None,
        NEAR=tolerance > 0,
        VDIM_P2=power_of_two(value_dim),
        BITS=8 * any_plane.element_size(),
        T=BLOCK,
        **tuning(max(key_dim, value_dim), "diff").options(NVIDIA),
        **pairing(rows.half, rows.neox),
        **shape_constants(key_dim, rows.half),
    )
    return masks


def pack(source: Planes, page: torch.Tensor, row: torch.Tensor, *, interpret: bool = False) -> Planes:
    """`reference.pack_reference`: the rows of a diff, gathered into new contiguous [present, heads, dim] tensors.

    Raises:
        KernelArgumentError: as `planes.check`.
    """
    n = len(page)
    packed = [
        None if t is None else t.new_empty(n, t.shape[1], t.shape[3]) for t in (source.key, source.value)
    ]
    target = Planes.dense(*packed)
    here = torch.arange(n, device=page.device)
    restore(source, target, RowMap.unrotated(page, row, torch.zeros_like(here), here), interpret=interpret)
    return target


def deviation(source: Planes, target: Planes, rows: RowMap, *, interpret: bool = False) -> torch.Tensor:
    """`reference.deviation_reference`: float32 [n]. Reused and fresh keys may differ in dtype.

    Raises:
        KernelArgumentError: as `planes.check`; planes without keys.
    """
    if source.key is None or target.key is None:
        raise KernelArgumentError("deviation: planes without keys; keys are what is compared")
    keys = Planes(source.key, None), Planes(target.key, None)
    check(*keys, rows, same_dtype=False)
    out = torch.empty(len(rows), dtype=torch.float32, device=target.key.device)
    if not len(rows):
        return out
    dim = target.key.shape[3]
    tuned = tuning(dim)
    runner(deviation_kernel, out.device, interpret)[(-(-len(rows) // tuned.rows),)](
        source.key,
        target.key,
        out,
        *_arrays(rows),
        len(rows),
        *_strides(source.key),
        *_strides(target.key),
        HEADS=target.key.shape[1],
        T=tuned.rows,
        **tuned.options(NVIDIA),
        **pairing(rows.half, rows.neox),
        **shape_constants(dim, rows.half),
    )
    return out


def rotate(
    keys: torch.Tensor,
    table: RopeTable,
    old: torch.Tensor,
    new: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    interpret: bool = False,
) -> torch.Tensor:
    """Rows of keys [n, heads, dim] from positions `old` to `new` (int64 [n]); `out` may be `keys` itself.

    Raises:
        KernelArgumentError: shapes, dtypes or devices that do not fit; names the argument.
    """
    n, dim = len(keys), keys.shape[-1]
    if keys.dim() != 3 or keys.dtype not in DTYPES or not 1 <= dim <= MAX_DIM:
        raise KernelArgumentError(
            f"keys: {keys.dtype} {tuple(keys.shape)}; allowed: floats [n, heads, dim <= {MAX_DIM}]"
        )
    out = torch.empty_like(keys) if out is None else out
    if out.shape != keys.shape or out.dtype != keys.dtype or out.device != keys.device:
        raise KernelArgumentError(f"out: {out.dtype} {tuple(out.shape)} on {out.device}; must be like keys")
    cos_sin = table.cos_sin
    if cos_sin.dtype != torch.float32 or not cos_sin.is_contiguous() or cos_sin.device != keys.device:
        raise KernelArgumentError(
            f"table: {cos_sin.dtype} on {cos_sin.device}; allowed: contiguous float32 beside keys"
        )
    if table.rot > dim or table.rot < 2:
        raise KernelArgumentError(f"table: {table.rot} rotated dimensions; allowed: 2 to {dim}")
    for name, index in (("old", old), ("new", new)):
        if (
            index.dtype != torch.int64
            or index.shape != (n,)
            or not index.is_contiguous()
            or index.device != keys.device
        ):
            raise KernelArgumentError(
                f"{name}: {index.dtype} {tuple(index.shape)} on {index.device}; "
                f"allowed: contiguous int64 [{n}] beside keys"
            )
    if not n:
        return out
    tuned, half = tuning(dim), table.rot // 2
    runner(rope_kernel, keys.device, interpret)[(-(-n // tuned.rows), keys.shape[1])](
        keys,
        out,
        cos_sin,
        old,
        new,
        table.inverse_square_of_scale(),
        n,
        *(keys.stride(d) for d in (0, 1, 2)),
        *(out.stride(d) for d in (0, 1, 2)),
        T=tuned.rows,
        **tuned.options(NVIDIA),
        **pairing(half, table.neox),
        **shape_constants(dim, half),
    )
    return out


def _arrays(rows: RowMap) -> tuple[torch.Tensor, ...]:
    return rows.source_page, rows.source_row, rows.target_page, rows.target_row, rows.cos, rows.sin


def _strides(plane: torch.Tensor | None) -> tuple[Any, ...]:
    """Page, head, row, dim; of an absent plane, anything."""
    return (0, 0, 0, 1) if plane is None else plane.stride()


def _dims(planes: Planes) -> tuple[int, int]:
    """Head size of keys and of values; 1 for an absent plane."""
    return tuple(1 if t is None else t.shape[3] for t in (planes.key, planes.value))  # type: ignore[return-value]
