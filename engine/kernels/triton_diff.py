"""Triton: which rows of a mirror differ from its master moved to the mirror's positions, as masks of 16-row blocks.

One program takes one block and all heads, so masks need no atomics; it adds to the masks it finds, so that layers
accumulate. Packing the present rows is a gather (`launch.pack`). Specification: `reference.diff_reference`.
"""

# ruff: noqa: N803 - a kernel's constants are upper case

import triton
import triton.language as tl


@triton.jit
def _either(a, b):  # type: ignore[no-untyped-def]
    return a | b


def diff_kernel(  # type: ignore[no-untyped-def]
    sk, sv, dk, dv,  # master (source) and mirror (target) planes
    masks,  # int32 [ceil(n / 16)], read and written
    source_page, source_row, target_page, target_row,  # int64 [n]
    cos, sin,  # float32 [n, HALF]
    n, tolerance,
    sk_page, sk_head, sk_row, sk_dim, sv_page, sv_head, sv_row, sv_dim,
    dk_page, dk_head, dk_row, dk_dim, dv_page, dv_head, dv_row, dv_dim,
    HEADS: tl.constexpr, KDIM: tl.constexpr, VDIM: tl.constexpr,
    HALF: tl.constexpr, STEP: tl.constexpr, GAP: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, NEAR: tl.constexpr,  # NEAR: tolerance > 0
    HALF_P2: tl.constexpr, REST_P2: tl.constexpr, VDIM_P2: tl.constexpr, BITS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    lane = tl.arange(0, T)
    r = block.to(tl.int64) * T + lane
    live = r < n
    sp = tl.load(source_page + r, mask=live, other=0)
    sr = tl.load(source_row + r, mask=live, other=0)
    tp = tl.load(target_page + r, mask=live, other=0)
    tr = tl.load(target_row + r, mask=live, other=0)
    uint: tl.constexpr = tl.int32 if BITS == 32 else tl.int16
    # Heads are joined element by element, lanes only once at the end.
    pairs = tl.full([T, HALF_P2], 0, tl.int32)
    rest = tl.full([T, REST_P2], 0, tl.int32)
    values = tl.full([T, VDIM_P2], 0, tl.int32)
    zero = tl.full((), 0, tl.int64)
    for head in range(HEADS):
        h = zero + head
        if KEYS:
            s_off = sp * sk_page + sr * sk_row + h * sk_head
            d_off = tp * dk_page + tr * dk_row + h * dk_head
            if HALF > 0:
                i = tl.arange(0, HALF_P2)
                a = i * STEP
                b = a + GAP
                m = live[:, None] & (i < HALF)[None, :]
                x = tl.load(sk + s_off[:, None] + a[None, :] * sk_dim, mask=m, other=0.0).to(tl.float32)
                y = tl.load(sk + s_off[:, None] + b[None, :] * sk_dim, mask=m, other=0.0).to(tl.float32)
                c = tl.load(cos + r[:, None] * HALF + i[None, :], mask=m, other=1.0)
                s = tl.load(sin + r[:, None] * HALF + i[None, :], mask=m, other=0.0)
                u = (x * c - y * s).to(dk.dtype.element_ty)
                v = (y * c + x * s).to(dk.dtype.element_ty)
                p = tl.load(dk + d_off[:, None] + a[None, :] * dk_dim, mask=m, other=0.0)
                q = tl.load(dk + d_off[:, None] + b[None, :] * dk_dim, mask=m, other=0.0)
                du = tl.where(m & (u.to(uint, bitcast=True) != p.to(uint, bitcast=True)), 1, 0)
                dq = tl.where(m & (v.to(uint, bitcast=True) != q.to(uint, bitcast=True)), 1, 0)
                if NEAR:
                    # Written so that a NaN is never near.
                    du = tl.where(tl.abs(u.to(tl.float32) - p.to(tl.float32)) <= tolerance, 0, du)
                    dq = tl.where(tl.abs(v.to(tl.float32) - q.to(tl.float32)) <= tolerance, 0, dq)
                pairs = pairs | du | dq
            if 2 * HALF < KDIM:
                j = 2 * HALF + tl.arange(0, REST_P2)
                mj = live[:, None] & (j < KDIM)[None, :]
                e = tl.load(sk + s_off[:, None] + j[None, :] * sk_dim, mask=mj, other=0.0)
                f = tl.load(dk + d_off[:, None] + j[None, :] * dk_dim, mask=mj, other=0.0)
                de = tl.where(mj & (e.to(uint, bitcast=True) != f.to(uint, bitcast=True)), 1, 0)
                rest = rest | de
        if VALUES:
            j2 = tl.arange(0, VDIM_P2)
            mv = live[:, None] & (j2 < VDIM)[None, :]
            sv_off = sp * sv_page + sr * sv_row + h * sv_head
            dv_off = tp * dv_page + tr * dv_row + h * dv_head
            g = tl.load(sv + sv_off[:, None] + j2[None, :] * sv_dim, mask=mv, other=0.0)
            w = tl.load(dv + dv_off[:, None] + j2[None, :] * dv_dim, mask=mv, other=0.0)
            dw = tl.where(mv & (g.to(uint, bitcast=True) != w.to(uint, bitcast=True)), 1, 0)
            values = values | dw
    changed = tl.full([T], 0, tl.int32)
    if KEYS and HALF > 0:
        changed = changed | tl.reduce(pairs, 1, _either)
    if KEYS and 2 * HALF < KDIM:
        changed = changed | tl.reduce(rest, 1, _either)
    if VALUES:
        changed = changed | tl.reduce(values, 1, _either)
    bits = tl.reduce(changed << lane, 0, _either)
    tl.store(masks + block, tl.load(masks + block) | bits)
