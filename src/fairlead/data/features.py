"""Feature skew: images that differ from client to client, for any split.

Each client has its own rotation or its own noise level. The functions return new images; the split
and the labels stay as they are, and so do images that belong to no client. A seed gives the same
bytes on every machine: rotation uses integers, noise multiples of 2⁻¹⁶.

>>> from fairlead.data.splits import Split
>>> image = torch.tensor([[[0, 1], [2, 3]]], dtype=torch.uint8)
>>> rotate(image.repeat(2, 1, 1), Split.of([[0], [1]]), angles=[0, 90]).tolist()
[[[0, 1], [2, 3]], [[1, 3], [0, 2]]]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fairlead.data.checks import as_tensor, check_split
from fairlead.data.splits import Split
from fairlead.errors import FairleadError

Images = TypeVar("Images", Tensor, NDArray[Any])

_PIXELS = 1 << 21  # per block, so that extra memory stays small compared to the images
_ONE = 1 << 16


def rotate(
    x: Images,
    split: Split,
    max_angle: float | None = None,
    seed: int = 0,
    *,
    angles: ArrayLike | None = None,
    fill: float = 0,
) -> Images:
    """Rotate every client's images counter-clockwise about their center, by the client's own angle in
    degrees: given, or drawn uniformly from ±max_angle. Pixels are interpolated bilinearly, to 1/256
    of a pixel; those from outside the image are `fill`. The images are uint8 or floating-point,
    (N, H, W) or (N, C, H, W)."""
    if (max_angle is None) == (angles is None):
        raise FairleadError(
            f"max_angle is {max_angle} and angles is {angles}: give one of them, such as max_angle=45"
        )
    images, client = _images(x, split)
    if angles is None:
        bound = _level("max_angle", max_angle)
        degrees = _rng(seed, 1).uniform(-bound, bound, len(split))
    else:
        degrees = _each("angles", angles, split)
    radians = np.deg2rad(np.remainder(degrees, 360))
    cos_sin = torch.from_numpy(np.rint(_ONE * np.stack([np.cos(radians), np.sin(radians)], 1)))
    out = images.clone()
    for rows in _blocks(client >= 0, images):
        rotations = cos_sin.to(torch.int64)[client[rows]].to(images.device)
        out[rows] = _rotated(images[rows], rotations, fill)
    return _like(x, out)


def noise(x: Images, split: Split, sigma: ArrayLike, seed: int = 0) -> Images:
    """Add Gaussian noise with the client's own standard deviation: one `sigma` per client, or drawn
    uniformly from [0, sigma]. Floating-point images use their own units and are not clipped; uint8
    images are scaled to [0, 1] for the noise and stay within 0 to 255.

    >>> split = Split.of([[0], [1]])
    >>> noise(torch.zeros(2, 1, 2), split, sigma=[0.0, 1.0])[0]
    tensor([[0., 0.]])
    """
    images, client = _images(x, split)
    rng = _rng(seed, 2)
    if np.ndim(sigma) == 0:
        levels = rng.uniform(0, _level("sigma", sigma), len(split))
    else:
        levels = _each("sigma", sigma, split)
        if (levels < 0).any():
            raise FairleadError(f"sigma holds {levels.min()}: it must not be negative")
    out = images.clone()
    for rows in _blocks(client >= 0, images):
        drawn = rng.standard_normal((len(rows), *images.shape[1:]))
        steps = torch.from_numpy(np.rint(drawn * _ONE) / _ONE)
        scale = torch.from_numpy(levels)[client[rows]].reshape(-1, *[1] * (images.ndim - 1))
        out[rows] = _added(images[rows], (steps * scale).to(images.device))
    return _like(x, out)


def _added(block: Tensor, change: Tensor) -> Tensor:
    if block.dtype == torch.uint8:
        return (block + 255 * change).round().clamp(0, 255).to(torch.uint8)
    return (block + change).to(block.dtype)


def _rotated(block: Tensor, rotations: Tensor, fill: float) -> Tensor:
    """Integer arithmetic: coordinates in half pixels from the center × 2¹⁶, weights in 256ths."""
    height, width = block.shape[-2:]
    flat = block.reshape(len(block), -1, height, width)
    framed = torch.nn.functional.pad(flat, (1, 1, 1, 1), value=fill).flatten(2)
    down = (2 * torch.arange(height, device=block.device) - (height - 1))[:, None]
    right = 2 * torch.arange(width, device=block.device) - (width - 1)
    cos, sin = rotations[:, 0, None, None], rotations[:, 1, None, None]
    row, low = _read(cos * down + sin * right, height)
    column, near = _read(cos * right - sin * down, width)
    total = torch.zeros((), device=block.device)
    for i, tall in ((row, 256 - low), (row + 1, low)):
        for j, wide in ((column, 256 - near), (column + 1, near)):
            pixel = i.clamp(0, height + 1) * (width + 2) + j.clamp(0, width + 1)
            value = framed.gather(2, pixel.flatten(1)[:, None].expand(-1, framed.shape[1], -1))
            total = total + value.to(torch.float64) * (tall * wide).flatten(1)[:, None]
    mean = (total / _ONE).reshape(block.shape)
    return mean.round().to(block.dtype) if block.dtype == torch.uint8 else mean.to(block.dtype)


def _read(position: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The framed image's pixel before a position, and the distance past it in 256ths."""
    parts = (position + (length + 1) * _ONE + 256) >> 9
    return parts >> 8, parts & 255


def _images(x: Tensor | NDArray[Any], split: Split) -> tuple[Tensor, Tensor]:
    """The images as a tensor, and the client of each one (−1 for none)."""
    images = as_tensor(x)
    kind = images.dtype == torch.uint8 or images.is_floating_point()
    if images.ndim not in (3, 4) or not kind:
        raise FairleadError(
            f"the images have shape {tuple(images.shape)} and type {images.dtype}: give uint8 or "
            "floating-point images of shape (N, H, W) or (N, C, H, W)"
        )
    check_split(split, len(images))
    shared = np.flatnonzero(np.bincount(split.order) > 1)
    if len(shared):
        raise FairleadError(f"sample {shared[0]} belongs to more than one client: assign it to one")
    client = torch.full((len(images),), -1)
    client[torch.from_numpy(split.order)] = torch.from_numpy(split.owners)
    return images, client


def _blocks(wanted: Tensor, images: Tensor) -> Iterator[Tensor]:
    rows = wanted.nonzero()[:, 0]
    return iter(rows.split(max(1, _PIXELS // max(1, images[0].numel()))))


def _level(name: str, value: Any) -> float:
    if not 0 <= float(value) < float("inf"):
        raise FairleadError(f"{name} is {value}: it must be finite and not negative")
    return float(value)


def _each(name: str, values: ArrayLike, split: Split) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (len(split),) or not np.isfinite(array).all():
        raise FairleadError(
            f"{name} has shape {array.shape} for {len(split)} clients: give one finite number per client"
        )
    return array


def _rng(seed: int, stream: int) -> np.random.Generator:
    if seed < 0:
        raise FairleadError(f"seed is {seed}: it must not be negative")
    return np.random.default_rng([seed, stream])


def _like(x: Images, out: Tensor) -> Images:
    if isinstance(x, Tensor):
        return out
    return out.numpy()
