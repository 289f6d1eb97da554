"""Triton: how far each position's fresh key is from the reused one moved to its place (squared, summed).

One program takes `T` positions and all heads, so sums need no atomics and are the same in every run. Specification:
`reference.deviation_reference`.
"""

# ruff: noqa: N803 - a kernel's constants are upper case

import triton
import triton.language as tl


@triton.jit
def _add(a, b):  # type: ignore[no-untyped-def]
    return a + b


def deviation_kernel(  # type: ignore[no-untyped-def]
    sk, dk,  # reused (source) and fresh (target) keys
    out,  # float32 [n]
    source_page, source_row, target_page, target_row,  # int64 [n]
    cos, sin,  # float32 [n, HALF]
    n,
    sk_page, sk_head, sk_row, sk_dim,
    dk_page, dk_head, dk_row, dk_dim,
    HEADS: tl.constexpr, KDIM: tl.constexpr,
    HALF: tl.constexpr, STEP: tl.constexpr, GAP: tl.constexpr,
    HALF_P2: tl.constexpr, REST_P2: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)
    live = r < n
    sp = tl.load(source_page + r, mask=live, other=0)
    sr = tl.load(source_row + r, mask=live, other=0)
    tp = tl.load(target_page + r, mask=live, other=0)
    tr = tl.load(target_row + r, mask=live, other=0)
    # Heads are summed element by element, lanes only once at the end.
    pairs = tl.full([T, HALF_P2], 0.0, tl.float32)
    rest = tl.full([T, REST_P2], 0.0, tl.float32)
    zero = tl.full((), 0, tl.int64)
    for head in range(HEADS):
        h = zero + head
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
            p = tl.load(dk + d_off[:, None] + a[None, :] * dk_dim, mask=m, other=0.0).to(tl.float32)
            q = tl.load(dk + d_off[:, None] + b[None, :] * dk_dim, mask=m, other=0.0).to(tl.float32)
            du = p - (x * c - y * s)
            dv = q - (y * c + x * s)
            pairs += du * du + dv * dv
        if 2 * HALF < KDIM:
            j = 2 * HALF + tl.arange(0, REST_P2)
            mj = live[:, None] & (j < KDIM)[None, :]
            e = tl.load(sk + s_off[:, None] + j[None, :] * sk_dim, mask=mj, other=0.0).to(tl.float32)
            f = tl.load(dk + d_off[:, None] + j[None, :] * dk_dim, mask=mj, other=0.0).to(tl.float32)
            rest += (f - e) * (f - e)
    total = tl.full([T], 0.0, tl.float32)
    if HALF > 0:
        total += tl.reduce(pairs, 1, _add)
    if 2 * HALF < KDIM:
        total += tl.reduce(rest, 1, _add)
    tl.store(out + r, total, mask=live)
