"""Moving keys between positions: a rotation by the difference of two positions.

A key computed at position p is R(p) k; at q it would be R(q) k = R(q - p) R(p) k. Tables are the model's own, in
float32: cos(q - p) = cos q cos p + sin q sin p, and so on, so every RoPE type whose angle is a function of the
position alone works, whatever its frequencies (default, linear, dynamic, YaRN, llama3, partial rotary).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin of every position.

    Attributes:
        cos_sin: float32 [positions, rot]: cosines of the rot/2 frequencies, then sines.
        neox: True when dimension i pairs with i + rot/2; False when 2i pairs with 2i + 1.
    """

    cos_sin: torch.Tensor
    neox: bool = True

    @property
    def rot(self) -> int:
        """Rotated dimensions of a head; the rest pass through."""
        return int(self.cos_sin.shape[1])

    def difference(self, old: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the angles from positions `old` to `new`.

        Args:
            old, new: int64 [n].

        Returns:
            Two float32 tensors [n, 1, rot/2].
        """
        half = self.rot // 2
        a, b = self.cos_sin[old], self.cos_sin[new]
        co, so, cn, sn = a[:, :half], a[:, half:], b[:, :half], b[:, half:]
        scale = self.inverse_square_of_scale()
        return ((cn * co + sn * so) * scale)[:, None], ((sn * co - cn * so) * scale)[:, None]

    def inverse_square_of_scale(self) -> float:
        """1 / m**2 of a table scaled by m (YaRN), else 1; waits for the device."""
        # Scaled tables (YaRN's mscale) hold m*cos and m*sin; a stored key already carries m once.
        half = self.rot // 2
        row = self.cos_sin[0]
        return float(1.0 / (row[:half].square() + row[half:].square())[0])


def rotate(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, neox: bool = True) -> torch.Tensor:
    """Rotate keys in float32.

    Args:
        keys: [n, heads, dim], any float dtype.
        cos, sin: float32 [n, 1, rot/2] from `RopeTable.difference`.
        neox: pairing of dimensions, as in `RopeTable`.

    Returns:
        Rotated keys [n, heads, dim] in the dtype of `keys`.
    """
    half = cos.shape[-1]
    x = keys.float()
    out = torch.empty_like(x)
    if neox:
        x1, x2 = x[..., :half], x[..., half : 2 * half]
        y1, y2 = out[..., :half], out[..., half : 2 * half]
    else:
        x1, x2 = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        y1, y2 = out[..., 0 : 2 * half : 2], out[..., 1 : 2 * half : 2]
    torch.mul(x1, cos, out=y1).addcmul_(x2, sin, value=-1)
    torch.mul(x2, cos, out=y2).addcmul_(x1, sin)
    if 2 * half < x.shape[-1]:
        out[..., 2 * half :] = x[..., 2 * half :]
    return out.to(keys.dtype)
