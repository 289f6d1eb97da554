"""The paper's layout: a member's dense cache as master; V bit for bit, K within rounding where positions differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_samples import make_member, random_rows, random_tokens, remake
from tokendance_engine.storage.errors import ShapeError
from tokendance_engine.storage.layout import Layout
from tokendance_engine.storage.member_master import ROUNDINGS, Dense, encode
from tokendance_engine.storage.restore import Work, materialise
from tokendance_engine.storage.rows import Rows, bits


def group(layout: Layout, histories: list[int], changes: list[float], seed: int = 0) -> list[Dense]:
    """Members that restored one transcript after histories of these lengths and recomputed these shares of it."""
    rng = np.random.default_rng(seed)
    text, kv = random_tokens(rng, 128), random_rows(layout, 128, seed)
    made = []
    for i, (history, share) in enumerate(zip(histories, changes, strict=True)):
        own = np.arange(history + 128) < history
        member = make_member(layout, text, kv, history, own, seed + i + 1)
        changed = history + rng.permutation(128)[: round(share * 128)]
        member.kv[:, :, changed] = random_rows(layout, len(changed), seed + 100 + i)
        made.append(Dense(member.tokens, Rows(member.kv.contiguous())))
    return made


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0.0, 0.05, 0.5, 1.0])), min_size=1, max_size=5),
    st.sampled_from(["float32", "bfloat16", "float16"]),
    st.integers(0, 500),
)
def test_values_come_back_exactly_and_keys_within_rounding(
    shape: list[tuple[int, float]], dtype: str, seed: int
) -> None:
    layout = Layout(2, 2, 64, dtype)
    members = group(layout, [h for h, _ in shape], [c for _, c in shape], seed)
    again = remake(layout)
    family = encode(members, again)
    for member, mirror in zip(members, family.mirrors, strict=True):
        mirror.check()
        work = Work.of(mirror, 0, len(mirror))
        for layer in range(layout.layers):
            key, value = materialise(work, layer, again)
            true_key, true_value = member.rows.layer(layer)
            assert torch.equal(bits(value), bits(true_value))
            allowed = ROUNDINGS * torch.finfo(key.dtype).eps * true_key.float().norm(dim=-1, keepdim=True)
            assert ((key.float() - true_key.float()).abs() <= allowed).all()


def test_the_member_from_which_the_others_deviate_least_is_elected() -> None:
    layout = Layout(2, 1, 64, "float32")
    family = encode(group(layout, [10, 20, 30, 40], [0.6, 0.7, 0.0, 0.5]), remake(layout))
    assert family.elected == 2
    assert family.mirrors[2].index.rows == 0
    assert family.mirrors[2].references.segments == (family.master,)


def test_members_at_one_position_keep_their_keys_exactly() -> None:
    layout = Layout(2, 1, 64, "bfloat16")
    members = group(layout, [32, 32], [0.0, 0.1])
    family = encode(members, remake(layout))
    other = 1 - family.elected
    work = Work.of(family.mirrors[other], 0, len(family.mirrors[other]))
    key, _ = materialise(work, 1, remake(layout))
    assert torch.equal(bits(key), bits(members[other].rows.layer(1)[0]))


def test_only_histories_and_changed_rows_are_stored() -> None:
    layout = Layout(2, 1, 64, "float32")
    members = group(layout, [16, 32, 48], [0.0, 0.25, 0.25])
    family = encode(members, remake(layout))
    assert family.elected == 0
    assert [m.index.rows for m in family.mirrors] == [0, 32 + 32, 48 + 32]


def test_no_members_are_refused() -> None:
    with pytest.raises(ShapeError, match="at least one"):
        encode([], remake(Layout(1, 1, 16, "float32")))
