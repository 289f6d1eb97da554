"""Triton: rotate dense rows of keys from one frame to another, angles taken from the model's own table.

One program takes `T` rows of one head; rows may be rotated in place. Specification: `rope.RopeTable.difference` and
`rope.rotate`.
"""

# ruff: noqa: N803 - a kernel's constants are upper case

import triton.language as tl


def rope_kernel(  # type: ignore[no-untyped-def]
    keys, out,  # [n, heads, dim]
    table,  # float32 [positions, 2 * HALF]: cosines, then sines
    old, new,  # int64 [n], positions
    inverse_square,  # 1 / scale**2 of scaled tables (YaRN), else 1
    n,
    k_row, k_head, k_dim, o_row, o_head, o_dim,
    KDIM: tl.constexpr,
    HALF: tl.constexpr, STEP: tl.constexpr, GAP: tl.constexpr,
    HALF_P2: tl.constexpr, REST_P2: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)
    live = r < n
    k_off = r * k_row + h * k_head
    o_off = r * o_row + h * o_head
    i = tl.arange(0, HALF_P2)
    a = i * STEP
    b = a + GAP
    m = live[:, None] & (i < HALF)[None, :]
    p = tl.load(old + r, mask=live, other=0)[:, None] * (2 * HALF) + i[None, :]
    q = tl.load(new + r, mask=live, other=0)[:, None] * (2 * HALF) + i[None, :]
    co = tl.load(table + p, mask=m, other=1.0)
    so = tl.load(table + p + HALF, mask=m, other=0.0)
    cn = tl.load(table + q, mask=m, other=1.0)
    sn = tl.load(table + q + HALF, mask=m, other=0.0)
    c = (cn * co + sn * so) * inverse_square
    s = (sn * co - cn * so) * inverse_square
    x = tl.load(keys + k_off[:, None] + a[None, :] * k_dim, mask=m, other=0.0).to(tl.float32)
    y = tl.load(keys + k_off[:, None] + b[None, :] * k_dim, mask=m, other=0.0).to(tl.float32)
    tl.store(out + o_off[:, None] + a[None, :] * o_dim, (x * c - y * s).to(out.dtype.element_ty), mask=m)
    tl.store(out + o_off[:, None] + b[None, :] * o_dim, (y * c + x * s).to(out.dtype.element_ty), mask=m)
    if 2 * HALF < KDIM:
        j = 2 * HALF + tl.arange(0, REST_P2)
        mj = live[:, None] & (j < KDIM)[None, :]
        w = tl.load(keys + k_off[:, None] + j[None, :] * k_dim, mask=mj, other=0.0)
        tl.store(out + o_off[:, None] + j[None, :] * o_dim, w, mask=mj)
