"""Triton: gather source rows, put packed rows in the place of some, rotate keys, scatter both planes; one layer.

One program takes `T` rows of one head. Specification: `reference.restore_planes`. Launch through `launch.restore`.
"""

# ruff: noqa: N803 - a kernel's constants are upper case

import triton.language as tl


def restore_kernel(  # type: ignore[no-untyped-def]
    sk, sv, dk, dv,  # source and target planes, key and value
    pk, pv, overlay,  # packed rows [present, heads, dim]; int32 [n], packed row or -1
    source_page, source_row, target_page, target_row,  # int64 [n]
    cos, sin,  # float32 [n, HALF]
    n,
    sk_page, sk_head, sk_row, sk_dim, sv_page, sv_head, sv_row, sv_dim,
    dk_page, dk_head, dk_row, dk_dim, dv_page, dv_head, dv_row, dv_dim,
    HEADS: tl.constexpr, KDIM: tl.constexpr, VDIM: tl.constexpr,
    HALF: tl.constexpr, STEP: tl.constexpr, GAP: tl.constexpr,  # pair i is (i * STEP, i * STEP + GAP)
    KEYS: tl.constexpr, VALUES: tl.constexpr, OVERLAY: tl.constexpr, ROTATE_OVERLAY: tl.constexpr,
    HALF_P2: tl.constexpr, REST_P2: tl.constexpr, VDIM_P2: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    # Page, row and head numbers times strides pass 2**31 in pools of ordinary size.
    h = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)
    live = r < n
    sp = tl.load(source_page + r, mask=live, other=0)
    sr = tl.load(source_row + r, mask=live, other=0)
    tp = tl.load(target_page + r, mask=live, other=0)
    tr = tl.load(target_row + r, mask=live, other=0)
    plain = live
    over = live
    packed = r
    if OVERLAY:
        at = tl.load(overlay + r, mask=live, other=-1)
        over = live & (at >= 0)
        plain = live & (at < 0)
        packed = tl.where(over, at, 0).to(tl.int64)
    if KEYS:
        s_off = sp * sk_page + sr * sk_row + h * sk_head
        d_off = tp * dk_page + tr * dk_row + h * dk_head
        pk_off = (packed * HEADS + h) * KDIM
        if HALF > 0:
            i = tl.arange(0, HALF_P2)
            a = i * STEP
            b = a + GAP
            in_i = (i < HALF)[None, :]
            m = live[:, None] & in_i
            mp = plain[:, None] & in_i
            x = tl.load(sk + s_off[:, None] + a[None, :] * sk_dim, mask=mp, other=0.0)
            y = tl.load(sk + s_off[:, None] + b[None, :] * sk_dim, mask=mp, other=0.0)
            c = tl.load(cos + r[:, None] * HALF + i[None, :], mask=m, other=1.0)
            s = tl.load(sin + r[:, None] * HALF + i[None, :], mask=m, other=0.0)
            if OVERLAY:
                mo = over[:, None] & in_i
                ox = tl.load(pk + pk_off[:, None] + a[None, :], mask=mo, other=0.0)
                oy = tl.load(pk + pk_off[:, None] + b[None, :], mask=mo, other=0.0)
                if ROTATE_OVERLAY:
                    x = tl.where(over[:, None], ox, x)
                    y = tl.where(over[:, None], oy, y)
            xf = x.to(tl.float32)
            yf = y.to(tl.float32)
            u = (xf * c - yf * s).to(dk.dtype.element_ty)
            v = (yf * c + xf * s).to(dk.dtype.element_ty)
            if OVERLAY and not ROTATE_OVERLAY:
                # Not a rotation by zero: that would turn infinities into NaNs.
                u = tl.where(over[:, None], ox, u)
                v = tl.where(over[:, None], oy, v)
            tl.store(dk + d_off[:, None] + a[None, :] * dk_dim, u, mask=m)
            tl.store(dk + d_off[:, None] + b[None, :] * dk_dim, v, mask=m)
        if 2 * HALF < KDIM:
            j = 2 * HALF + tl.arange(0, REST_P2)
            in_j = (j < KDIM)[None, :]
            w = tl.load(sk + s_off[:, None] + j[None, :] * sk_dim, mask=plain[:, None] & in_j, other=0.0)
            if OVERLAY:
                ow = tl.load(pk + pk_off[:, None] + j[None, :], mask=over[:, None] & in_j, other=0.0)
                w = tl.where(over[:, None], ow, w)
            tl.store(dk + d_off[:, None] + j[None, :] * dk_dim, w, mask=live[:, None] & in_j)
    if VALUES:
        j2 = tl.arange(0, VDIM_P2)
        in_v = (j2 < VDIM)[None, :]
        sv_off = sp * sv_page + sr * sv_row + h * sv_head
        dv_off = tp * dv_page + tr * dv_row + h * dv_head
        z = tl.load(sv + sv_off[:, None] + j2[None, :] * sv_dim, mask=plain[:, None] & in_v, other=0.0)
        if OVERLAY:
            pv_off = (packed * HEADS + h) * VDIM
            oz = tl.load(pv + pv_off[:, None] + j2[None, :], mask=over[:, None] & in_v, other=0.0)
            z = tl.where(over[:, None], oz, z)
        tl.store(dv + dv_off[:, None] + j2[None, :] * dv_dim, z, mask=live[:, None] & in_v)
