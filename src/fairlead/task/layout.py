"""The layout of a model: its trained parameters in one flat vector, its buffers in another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fairlead.errors import FairleadError


@dataclass(frozen=True)
class Part:
    """One parameter or buffer."""

    name: str
    shape: torch.Size
    size: int
    dtype: torch.dtype


class Layout:
    """A model as flat vectors.

    >>> layout = Layout(nn.Linear(3, 2))
    >>> layout.dim, layout.layers
    (8, {'weight': slice(0, 6, None), 'bias': slice(6, 8, None)})
    """

    def __init__(self, model: nn.Module) -> None:
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not trained:
            raise FairleadError("the model has no trainable parameters: set requires_grad on some")
        saved = model.state_dict(
            keep_vars=True
        )  # what is not saved is computed, such as rotary frequencies
        buffers = {n: b for n, b in model.named_buffers() if n in saved and _travels(n, b)}
        self.parameters, self.buffers = _parts(trained.items()), _parts(buffers.items())
        self.fixed = {n: p.detach() for n, p in model.named_parameters() if n not in trained}
        self.fixed |= {n: b for n, b in model.named_buffers() if n not in buffers}
        self.dim = sum(part.size for part in self.parameters)
        self.buffer_dim = sum(part.size for part in self.buffers)
        self._sizes = [part.size for part in self.parameters]
        self._buffer_sizes = [part.size for part in self.buffers]

    @property
    def layers(self) -> dict[str, slice]:
        """The slice of each parameter in the vector."""
        ends = np.cumsum(self._sizes).tolist()
        pairs = zip(self.parameters, ends, strict=True)
        return {part.name: slice(end - part.size, end) for part, end in pairs}

    def flatten(self, model: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The current parameters and buffers of a model with this layout."""
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        x = torch.cat([named[part.name].detach().reshape(-1) for part in self.parameters])
        flat = [named[part.name].detach().reshape(-1).to(dtype) for part in self.buffers]
        return x, torch.cat(flat) if flat else x.new_zeros(0)

    def views(self, x: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views of the vector."""
        parts = zip(self.parameters, x.split(self._sizes), strict=True)
        return {part.name: values.view(part.shape) for part, values in parts}

    def stacked_views(self, x: Tensor) -> dict[str, Tensor]:
        """The parameters of many clients (S, d) by name, each (S, …)."""
        parts = zip(self.parameters, x.split(self._sizes, -1), strict=True)
        return {part.name: values.unflatten(-1, part.shape) for part, values in parts}

    def buffer_views(self, flat: Tensor) -> dict[str, Tensor]:
        """The buffers by name; counts are rounded to whole numbers."""
        parts = zip(self.buffers, flat.split(self._buffer_sizes), strict=True)
        return {
            part.name: (v if part.dtype.is_floating_point else v.round())
            .reshape(part.shape)
            .to(part.dtype)
            for part, v in parts
        }


def _parts(named: Iterable[tuple[str, Tensor]]) -> Sequence[Part]:
    return [Part(name, t.shape, t.numel(), t.dtype) for name, t in named]


def _travels(name: str, buffer: Tensor) -> bool:
    """Whether a buffer is averaged, as statistics are; other integer buffers are constants."""
    return buffer.is_floating_point() or name.endswith("num_batches_tracked")
