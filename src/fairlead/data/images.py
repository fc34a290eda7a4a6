"""Images stored as bytes, normalised and augmented on the fly.

A task keeps images as bytes on its device. Each step's images are gathered, flipped, cropped and
converted there for the whole cohort at once; every choice is a function of (seed, round, client,
step, position in the batch), so runs do not depend on the engine. Full passes, the large batches of
FedLOMO and FedGLOMO, and evaluation are not augmented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.errors import FairleadError
from fairlead.rng import hashed


class Transform(Protocol):
    """Converts the inputs of a step to floating point."""

    def __call__(self, x: Tensor, dtype: torch.dtype, keys: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Images:
    """Normalise bytes to (x/255 − mean)/std per channel, with a random flip and crop in training.

    flip: mirror horizontally with probability ½.
    crop: shift by up to this many pixels, padding with zeros.

    >>> plain = Images(mean=[0.5], std=[0.5])
    >>> plain(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), torch.float32)
    tensor([[[[-1.,  1.]]]])
    """

    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    flip: bool = False
    crop: int = 0

    def __post_init__(self) -> None:
        given = isinstance(self.mean, Sequence) and isinstance(self.std, Sequence)
        fine = given and len(self.mean) == len(self.std) > 0 and min(self.std) > 0
        if not fine or not isinstance(self.crop, int) or self.crop < 0:
            raise FairleadError(
                f"{self} is not valid: mean and std must have one number per channel, std must be "
                "positive, and crop must be a number of pixels"
            )

    @classmethod
    def of(cls, x: Tensor | NDArray[np.uint8], flip: bool = False, crop: int = 0) -> Images:
        """With the mean and standard deviation of images (N, C, H, W), or of grey ones (N, H, W), which may be
        memory-mapped."""
        x = x[:, None] if x.ndim == 3 else x
        _check(x)
        levels = np.arange(256) / 255
        counts = np.zeros((x.shape[1], 256), dtype=np.int64)
        for first in range(0, len(x), 4096):
            part = np.asarray(x[first : first + 4096])
            for channel in range(x.shape[1]):
                counts[channel] += np.bincount(part[:, channel].ravel(), minlength=256)
        n = counts.sum(1)
        mean = counts @ levels / n
        std = np.sqrt((counts * (levels - mean[:, None]) ** 2).sum(1) / np.maximum(n - 1, 1))
        return cls(mean.tolist(), np.maximum(std, 1e-6).tolist(), flip, crop)

    def __call__(self, x: Tensor, dtype: torch.dtype, keys: Tensor | None = None) -> Tensor:
        """Normalised images (…, C, H, W). With `keys` (S, 2), two words per client, images
        (S, B, C, H, W) are also augmented."""
        _check(x)
        if x.shape[-3] != len(self.mean):
            raise FairleadError(
                f"the images have {x.shape[-3]} channels, the transform {len(self.mean)}: "
                "give one mean and std per channel"
            )
        if keys is not None and (self.flip or self.crop):
            x = self.augmented(x, keys)
        mean, scale = _constants(tuple(self.mean), tuple(self.std), dtype, x.device)
        return (x.to(dtype) / 255 - mean) / scale

    def augmented(self, x: Tensor, keys: Tensor) -> Tensor:
        """Images (S, B, C, H, W), each flipped and shifted by its own three random numbers."""
        (s, b), (h, w) = x.shape[:2], x.shape[-2:]
        u = hashed(keys, 3 * b, torch.float32).view(s, b, 3)
        reach = 2 * self.crop + 1
        down, right = ((u[..., k] * reach).long() - self.crop for k in (0, 1))
        rows = down[..., None] + torch.arange(h, device=x.device)
        columns = torch.arange(w, device=x.device).expand(s, b, w)
        if self.flip:
            columns = torch.where(u[..., 2:] < 0.5, w - 1 - columns, columns)
        columns = columns + right[..., None]
        inside = ((rows >= 0) & (rows < h))[..., None] & ((columns >= 0) & (columns < w))[
            ..., None, :
        ]
        pixel = rows.clamp(0, h - 1)[..., None] * w + columns.clamp(0, w - 1)[..., None, :]
        flat = pixel.view(s, b, 1, h * w).expand(*x.shape[:3], h * w)
        return (x.flatten(-2).gather(-1, flat) * inside.view(s, b, 1, h * w)).view(x.shape)


@lru_cache
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel, moved to the device once."""
    both = (torch.tensor(v, dtype=dtype, device=device)[:, None, None] for v in (mean, std))
    return next(both), next(both)


def _check(x: Tensor | NDArray[np.uint8]) -> None:
    if str(x.dtype).removeprefix("torch.") != "uint8" or x.ndim < 4:
        raise FairleadError(
            f"the images are {x.dtype} of shape {tuple(x.shape)}: give uint8 images as (N, C, H, W) or (N, H, W)"
        )
