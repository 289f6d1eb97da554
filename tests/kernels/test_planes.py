"""Launchers refuse what kernels cannot take, by name, before anything is launched or written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from plane_cases import PlaneCase
from tokendance_engine.errors import EngineError
from tokendance_engine.kernels.planes import KernelArgumentError, Planes, RowMap, check

Change = Callable[[PlaneCase], dict[str, Any]]


def rows(**changes: Any) -> Change:
    return lambda case: {"rows": replace(case.rows, **changes)}


def source(**changes: Any) -> Change:
    return lambda case: {"source": replace(case.planes, **changes)}


def overlay(**changes: Any) -> Change:
    return lambda case: {"overlay": replace(case.overlay(), **changes)}


LONG = torch.zeros(21, dtype=torch.int64)
REFUSED: list[tuple[Change, str]] = [
    (lambda case: {"source": Planes(None, None), "target": Planes(None, None)}, "neither key nor value"),
    (source(key=None), "key: only the target has this plane"),
    (source(value=torch.zeros(7, 3, 16, 64)), "value: source .* differ in heads or dim"),
    (source(value=torch.zeros(7, 2, 16, 32)), "value: source .* differ in heads or dim"),
    (source(key=torch.zeros(7, 2, 64)), r"source.key: shape \(7, 2, 64\); allowed: \[pages, heads, rows, dim\]"),
    (source(key=torch.zeros(7, 2, 16, 64, dtype=torch.float64)), "source.key: dtype torch.float64; allowed: float32"),
    (source(key=torch.zeros(7, 2, 16, 64, dtype=torch.float16)), "key: source is torch.float16, target torch.float32"),
    (rows(target_row=LONG[:20]), r"rows.target_row: torch.int64 \(20,\); allowed: contiguous int64 \[21\]"),
    (rows(source_page=LONG.int()), "rows.source_page: torch.int32"),
    (rows(target_page=torch.zeros(42, dtype=torch.int64)[::2]), "rows.target_page: .*contiguous"),
    (rows(sin=torch.zeros(21, 31)), r"rows.sin: torch.float32 \(21, 31\); allowed: contiguous float32 \[21, 32\]"),
    (rows(cos=torch.zeros(21, 32).double()), "rows.cos: torch.float64"),
    (rows(cos=torch.zeros(21, 33), sin=torch.zeros(21, 33)), "rows.cos: 66 rotated dimensions; a key has 64"),
    (rows(cos=torch.zeros(21, 32, device="meta")), "rows.cos: on meta; the planes are on cpu"),
    (source(key=torch.zeros(7, 2, 16, 64, device="meta")), "planes on meta and cpu"),
    (overlay(index=LONG), r"overlay.index: torch.int64 \(21,\); allowed: contiguous int32 \[21\]"),
    (overlay(key=None), "overlay.key: must be given exactly when"),
    (overlay(value=torch.zeros(7, 2, 32)), r"overlay.value: .*allowed: contiguous torch.float32 \[present, 2, 64\]"),
    (overlay(key=torch.zeros(7, 64, 2).transpose(1, 2)), r"overlay.key: .*contiguous"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[m[:40] for _, m in REFUSED])
def test_what_does_not_fit_is_refused_by_name(change: Change, message: str) -> None:
    case = PlaneCase.draw()
    given = {"source": case.planes, "target": case.planes, "rows": case.rows}
    check(**given)
    check(**given, overlay=case.overlay())
    with pytest.raises(KernelArgumentError, match=message) as caught:
        check(**{**given, **change(case)})
    assert isinstance(caught.value, EngineError)
    assert isinstance(caught.value, ValueError)


def test_a_rotation_without_keys_is_refused() -> None:
    case = PlaneCase.draw()
    values = replace(case.planes, key=None)
    with pytest.raises(KernelArgumentError, match="32 rotated pairs, but there is no key plane"):
        check(values, values, case.rows)


def test_compiled_kernels_are_for_gpus_only() -> None:
    pytest.importorskip("triton")
    from tokendance_engine.kernels import launch

    case = PlaneCase.draw()
    with pytest.raises(RuntimeError, match="Triton kernels on cpu: allowed are CUDA and ROCm devices"):
        launch.restore(case.planes, case.planes, case.rows)


def test_dense_rows_are_a_view_as_one_page() -> None:
    key = torch.arange(24.0).view(3, 2, 4)
    planes = Planes.dense(key, None)
    assert planes.key is not None
    assert planes.key.shape == (1, 2, 3, 4)
    planes.key[0, 1, 2, 3] = -1
    assert key[2, 1, 3] == -1
    assert planes.each() == [planes.key]


def test_unrotated_rows_have_no_angles() -> None:
    index = torch.arange(5)
    made = RowMap.unrotated(index, index, index, index)
    assert (len(made), made.half, made.cos.shape) == (5, 0, (5, 0))
