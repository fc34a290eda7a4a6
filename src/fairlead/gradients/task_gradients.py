"""A task's samples, losses and gradients, as functions of one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fairlead.data.images import Transform
from fairlead.task.layout import Layout
from fairlead.gradients.deferred import WORTH, Vector
from fairlead.gradients.oracle import Alone, Form, Oracle
from fairlead.gradients.capture import TRACE_AFTER

Block: TypeAlias = tuple[Tensor, ...]


class Gradients:
    """What a task computes for its clients."""

    model: nn.Module
    loss: Callable[..., Tensor]
    layout: Layout
    transform: Transform | None
    data: Block
    order: Tensor
    dim: int
    inputs: int
    dtype: torch.dtype
    device: torch.device
    store: torch.device
    l2: float
    mixes_samples: bool
    recordable: bool
    flip: Tensor | None = None
    form: Form = Form()
    record_after: int = TRACE_AFTER
    _first: Tensor
    _oracles: dict[Form, Oracle]
    _alone: Alone

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples a client."""
        raise AttributeError("sizes")

    def _cast(self, t: Tensor) -> Tensor:
        return t.to(self.device, self.dtype if t.is_floating_point() else None)

    def samples(self, client: Tensor, index: Tensor, keys: Tensor | None = None) -> Block:
        """The samples at positions `index` (S, B) of the clients (S,), gathered: (S, B, …). The
        transform makes numbers of them, and with `keys` augments them."""
        rows = self.order[(self._first[client][:, None] + index).reshape(-1)]
        block = tuple(t.unflatten(0, index.shape) for t in self.taken(self.data, rows))
        return self.prepared(block, keys)

    def taken(self, data: Block, rows: Tensor) -> Block:
        """Some rows of data, on the task's device; `rows` lie where the data lie."""
        return tuple(self._cast(t.index_select(0, rows.to(t.device))) for t in data)

    def prepared(self, block: Block, keys: Tensor | None = None) -> Block:
        """Samples as the model takes them, whatever the transform makes of them."""
        if self.transform is None:
            return block
        return self.transform(block[0], self.dtype, keys), *block[1:]

    def losses(self, x: Tensor, block: Block, buffers: Tensor) -> tuple[Tensor, Tensor]:
        """A loss a sample, and the buffers after the pass."""
        point = x.to(torch.bfloat16) if self.form.half else x
        return self._losses(self.layout.views(point), block, buffers)

    def _losses(
        self, point: dict[str, Tensor], block: Block, buffers: Tensor
    ) -> tuple[Tensor, Tensor]:
        # copies of their own: layers change buffers in place, and under vmap only whole tensors
        named = {n: b.clone() for n, b in self.layout.buffer_views(buffers).items()}
        inputs, full = block[: self.inputs], buffers.dtype
        if self.form.half:
            inputs = tuple(t.to(torch.bfloat16) if t.is_floating_point() else t for t in inputs)
        output = functional_call(self.model, {**point, **self.layout.fixed, **named}, inputs)
        losses = self.loss(output.to(full), *block[self.inputs :])
        if named:
            buffers = torch.cat([named[n].reshape(-1).to(full) for n in named])
        return losses, buffers

    def mean_loss(
        self, x: Tensor, weights: Tensor | None, buffers: Tensor, *block: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The mean loss of a block, and the buffers after the pass."""
        losses, buffers = self.losses(x, block, buffers)
        return losses.mean() if weights is None else (losses * weights).sum(), buffers

    def grads(
        self, x: Tensor, block: Block, weights: Tensor | None, buffers: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the data loss of S clients at once, see `Oracle`."""
        if self.form not in self._oracles:
            self._oracles[self.form] = Oracle(self, self.form)
        return self._oracles[self.form](x, block, weights, buffers, self.record_after)

    @property
    def recordings(self) -> int:
        """How many of its gradients have been recorded as lists of operators."""
        return self._alone.recordings + sum(o.recordings for o in self._oracles.values())

    def formed(self, form: Form) -> Self:
        """The task with its gradients computed in another form."""
        other = copy.copy(self)
        other.form, other._alone = form, Alone(other)
        return other

    def grad_block(
        self, x: Tensor, block: Block, buffers: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The gradient of one client's data loss on a block (B, …), by plain autograd."""
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            loss, buffers = self.mean_loss(leaf, weights, buffers, *block)
            (g,) = torch.autograd.grad(loss, leaf)
        return g, buffers.detach()

    def parts_of_gradient(
        self, x: Tensor, weights: None, buffers: Tensor, *block: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """The gradient of one client's data loss by parameter, so that they need not be put together."""
        point = x.detach().to(torch.bfloat16) if self.form.half else x.detach()
        leaves = {n: v.detach().requires_grad_() for n, v in self.layout.views(point).items()}
        with torch.enable_grad():
            losses, buffers = self._losses(leaves, block, buffers)
            found = torch.autograd.grad(losses.mean(), list(leaves.values()))
        return [g.to(x.dtype) for g in found], buffers.detach()

    def gradient(self, x: Tensor, block: Block, buffers: Tensor) -> tuple[Any, Tensor]:
        """The gradient of one client on a block (B, …), computed on when it is used."""
        if self.form.last:
            block = (block[0].to(memory_format=torch.channels_last), *block[1:])
        late = self.dim >= WORTH and self.device.type == "cpu"
        parts, buffers = self._alone(self, x, block, buffers, late)
        if late:
            return Vector.of(parts, self._alone.together), buffers
        return torch.cat([g.reshape(-1) for g in parts]), buffers

    def regularised(self, g: Any, x: Any) -> Any:
        """The gradient of the objective from that of the data loss; for a saddle task the gradient
        mapping, whose sign is turned where the objective is maximized."""
        g = self.turned(g)
        return g + self.l2 * x if self.l2 else g

    def turned(self, v: Any) -> Any:
        """The vector with its sign turned where the objective is maximized."""
        return v if self.flip is None else v * self.flip

    def full_grads(
        self, clients: NDArray[np.int64], x: Tensor, buffers: Tensor, limit: int
    ) -> tuple[Tensor, Tensor]:
        """The full local gradients of S clients, with at most `limit` samples at a time, and the
        buffers after the pass."""
        sizes, owners = self.sizes[clients], torch.from_numpy(clients).to(self.store)
        n = torch.from_numpy(sizes).to(self.device)
        return self.passed(owners, n, int(sizes.max()), x, buffers, limit)

    def passed(
        self, owners: Tensor, sizes: Tensor, largest: int, x: Tensor, buffers: Tensor, limit: int
    ) -> tuple[Tensor, Tensor]:
        """`full_grads` of clients of these sizes, at most `largest`, with everything on the device."""
        n, count = sizes[:, None], len(sizes)
        # a model that mixes samples sees all of a client's at once
        width = largest if self.mixes_samples else max(1, min(largest, limit // count))
        total: Tensor | float = 0.0
        for first in range(0, largest, width):
            index = first + torch.arange(width, device=self.device).expand(count, width)
            weights = (index < n).to(self.dtype) / n
            block = self.samples(owners, torch.where(index < n, index, 0).to(self.store))
            g, buffers = self.grads(x, block, weights, buffers)
            total = total + g
        return self.regularised(torch.as_tensor(total), x), buffers

    def full_grad(
        self, client: int, x: Tensor, buffers: Tensor, limit: int
    ) -> tuple[Tensor, Tensor]:
        """The full local gradient of one client, block by block, and the buffers after it."""
        n = int(self.sizes[client])
        owner = torch.tensor([client], device=self.store)
        total: Tensor | float = 0.0
        for index in torch.arange(n, device=self.store).split(n if self.mixes_samples else limit):
            block = tuple(t[0] for t in self.samples(owner, index[None]))
            g, buffers = self.gradient(x, block, buffers)
            total = total + len(index) / n * g
        return self.regularised(total, x), buffers
