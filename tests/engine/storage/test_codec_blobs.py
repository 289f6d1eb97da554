"""Blobs: any change of any byte is noticed and named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.storage.codec import HEADER_BYTES, Kind, open_blob, pack, seal, unpack
from tokendance_engine.storage.errors import BlobError

MODEL, NAME = b"m" * 16, b"n" * 16


def sealed(payload: bytes) -> np.ndarray:
    blob = np.frombuffer(bytes(HEADER_BYTES) + payload, dtype=np.uint8).copy()
    seal(blob, Kind.ROWS, MODEL, NAME)
    return blob


def reason(blob: np.ndarray, kind: Kind = Kind.ROWS, model: bytes = MODEL, name: bytes = NAME) -> str:
    with pytest.raises(BlobError) as caught:
        open_blob(blob, kind, model, name)
    return caught.value.reason


@given(st.binary(max_size=300))
def test_a_payload_comes_back(payload: bytes) -> None:
    assert open_blob(sealed(payload), Kind.ROWS, MODEL, NAME).tobytes() == payload


@given(st.binary(min_size=1, max_size=100), st.data())
def test_any_flipped_bit_is_noticed(payload: bytes, data: st.DataObject) -> None:
    blob = sealed(payload)
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert reason(blob) in BlobError.REASONS


@given(st.binary(min_size=1, max_size=100), st.data())
def test_any_truncation_is_noticed(payload: bytes, data: st.DataObject) -> None:
    blob = sealed(payload)
    assert reason(blob[: data.draw(st.integers(0, len(blob) - 1))]) == "truncated"


def test_each_kind_of_stranger_is_named() -> None:
    blob = sealed(b"payload")
    older = blob.copy()
    older[4] = 0
    assert reason(older) == "version"
    other = blob.copy()
    other[:4] = 0
    assert reason(other) == "foreign"
    assert reason(blob, model=b"x" * 16) == "layout"
    assert reason(blob, name=b"x" * 16) == "foreign"
    assert reason(blob, kind=Kind.ROOT) == "foreign"
    last = blob.copy()
    last[-1] ^= 1
    assert reason(last) == "checksum"


def test_documents_keep_types_and_shapes() -> None:
    arrays = [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.zeros((0, 4), dtype=np.int32),
        np.array([1, 65535], dtype=np.uint16),
    ]
    meta, back = unpack(pack({"a": [1, None, "x"]}, arrays))
    assert meta == {"a": [1, None, "x"]}
    for made, original in zip(back, arrays, strict=True):
        assert made.dtype == original.dtype
        assert np.array_equal(made, original)


@given(st.binary(max_size=200))
def test_nonsense_is_no_document_and_does_not_raise_anything_else(raw: bytes) -> None:
    with pytest.raises(BlobError):
        unpack(np.frombuffer(raw, dtype=np.uint8))
