"""Beyond gradients, for measures: Hessian-vector products, gradients of single samples, losses and features, of many
clients at once, a few samples at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from fairlead.gradients.form import Form
from fairlead.gradients.oracle import Gradients
from fairlead.task.evaluation import turned
from fairlead.task.samples import Block, losses_of, output_of
from fairlead.task.task import Task

Chosen = tuple[Tensor, NDArray[np.int64]] | None
"""Positions of samples (S, B) and how many count in each row; None for all of a client's samples."""


ROOM = (512 << 20, 8 << 30)
"""Bytes of gradients of single samples at a time, on a CPU and on a GPU."""


class Local:
    """The functions of some clients. Points are (1, d), the same for all, or (S, d)."""

    def __init__(
        self, oracle: Gradients, rows: NDArray[np.int64], buffers: Tensor, limit: int
    ) -> None:
        self.oracle, self.replays = oracle.replayed(Form(way="vmap")), oracle.replays
        layered = oracle.form.way == "stacked"
        self.by_layers = oracle.replayed(Form(way="stacked")) if layered else None
        self.rows, self.buffers, self.limit = rows, buffers, limit
        self.owners = torch.from_numpy(rows).to(oracle.task.store, non_blocking=True)

    @property
    def task(self) -> Task:
        """The task."""
        return self.oracle.task

    def _blocks(self, chosen: Chosen, width: int) -> Iterator[tuple[Block, Tensor]]:
        """Samples (S, B, …) and their weights (S, B), which sum to one for every client. Chosen ones that fit in one
        block are kept for the next time."""
        task = self.task
        sizes = task.sizes[self.rows] if chosen is None else chosen[1]
        largest = int(sizes.max())
        step = largest if task.mixes_samples else max(1, min(largest, width // len(self.rows)))
        if step < largest:
            for first in range(0, largest, step):
                yield self._block(chosen, sizes, first, min(first + step, largest))
            return
        yield self._block(chosen, sizes, 0, largest) if chosen is None else self._recent(chosen)

    def _recent(self, chosen: tuple[Tensor, NDArray[np.int64]]) -> tuple[Block, Tensor]:
        """The samples of the last time, if they are the same."""
        index, owners, found = self.oracle.recent.get("block", (None,) * 3)
        if index is not chosen[0] or owners != self.rows.tobytes():
            found = self._block(chosen, chosen[1], 0, int(chosen[1].max()))
            self.oracle.recent["block"] = chosen[0], self.rows.tobytes(), found
        return found

    def _block(
        self, chosen: Chosen, sizes: NDArray[np.int64], first: int, stop: int
    ) -> tuple[Block, Tensor]:
        task = self.task
        n = torch.from_numpy(sizes).to(task.device, non_blocking=True)[:, None]
        place = torch.arange(first, stop, device=task.device)
        inside = place < n
        index = place.expand(len(self.rows), -1)
        if chosen is not None:
            index = chosen[0].to(task.device)[:, place]
        index = torch.where(inside, index, 0).to(task.store)
        return task.samples(self.owners, index), inside.to(task.dtype) / n

    def halves(self, x: Tensor, chosen: tuple[Tensor, NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
        """The gradient g on chosen samples (S, d), and half the difference h of those on their halves.

        For b of n samples drawn without replacement, E‖g‖² = ‖∇f‖² + (1 − b/n)·E‖h‖²; h is scaled by √(1 − b/n).
        """
        task, (index, count) = self.task, chosen
        index, half = index.to(task.store), index.shape[1] // 2
        n = torch.from_numpy(count).to(task.device)[:, None]
        place = torch.arange(index.shape[1], device=task.device)
        weights = (place < n).to(task.dtype) / n
        sums = []
        for part in (slice(0, half), slice(half, None)):
            total: Tensor | float = 0.0
            step = self.limit if task.mixes_samples else max(1, self.limit // len(self.rows))
            for rows, w in zip(
                index[:, part].split(step, 1), weights[:, part].split(step, 1), strict=True
            ):
                block = task.samples(self.owners, rows)
                total = total + self.oracle.stacked(_plain(x), block, w, self.buffers)[0]
            sums.append(torch.as_tensor(total))
        left = 1 - torch.from_numpy(count / task.sizes[self.rows]).to(task.device, task.dtype)
        h = left.clamp(min=0).sqrt()[:, None] * (sums[0] - sums[1])
        return task.regularised(sums[0] + sums[1], x), turned(task, h)

    def products(self, x: Tensor, v: Tensor, chosen: Chosen = None) -> Tensor:
        """∇²f_i(x)·v for several vectors of every client (S, m, d), by differentiating the gradient forwards or backwards, or
        by layers where the run's gradients are."""
        task, rows = self.task, v.shape[:2].numel()

        def loss(x: Tensor, w: Tensor, own: Tensor, *block: Tensor) -> Tensor:
            return self.oracle.mean_loss(x, w, own, *block)[0]

        def forward(x: Tensor, v: Tensor, *more: Tensor) -> Tensor:
            def one(v: Tensor) -> Tensor:
                return jvp(lambda x: grad(loss)(x, *more), (x,), (v,))[1]

            return each(one, v)

        def backward(x: Tensor, v: Tensor, *more: Tensor) -> Tensor:
            return each(lambda v: grad(lambda x: grad(loss)(x, *more) @ v)(x), v)

        def each(one: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
            if len(v) == 1 or not task.stackable:
                return torch.stack([one(row) for row in v])
            return vmap(one, randomness="same")(v)

        def run(x: Tensor, *more: Tensor) -> Tensor:
            if self.by_layers is not None:
                return self.by_layers.products_by_layers(x, *more)
            ways = [forward, backward] if x.is_cuda else [backward, forward]  # the faster one first
            return _first_that_works(ways, task, x, more)

        total = torch.zeros_like(v)
        # as many vectors at a time as clients' samples fit with, and at least one
        few = max(1, self.limit * v.shape[1] // max(1, rows * int(task.sizes[self.rows].max())))
        for block, weights in self._blocks(chosen, self.limit):
            parts = []
            for some in v.split(few, 1):
                more = (x, some, weights, self.buffers, *block)
                parts.append(
                    run(*more) if task.draws_masks else self.replays("products", run, *more)
                )
            total = total + torch.cat(parts, 1)
        return total + task.l2 * turned(task, v) if task.l2 else total

    def variance(self, x: Tensor, chosen: Chosen = None, part: Any = None) -> Tensor:
        """E‖g − ∇f_i(x)‖² over single samples, on some coordinates: (S, 1)."""
        task = self.task

        def one(x: Tensor, own: Tensor, *sample: Tensor) -> Tensor:
            block = tuple(t[None] for t in sample)
            g = grad(lambda x: self.oracle.mean_loss(x, None, own, *block)[0])(x)
            return g if part is None else g[part]

        def all_of(x: Tensor, own: Tensor, *block: Tensor) -> Tensor:
            if not task.stackable:
                return torch.stack([one(x, own, *sample) for sample in zip(*block, strict=True)])
            inner = vmap(one, in_dims=(None, None, *(0 for _ in block)), randomness="different")
            return inner(x, own, *block)

        squares: Tensor | float = 0.0
        mean: Tensor | float = 0.0
        room = ROOM[task.device.type == "cuda"] // (3 * task.dim * x.element_size())
        for block, weights in self._blocks(chosen, min(self.limit, max(1, room))):
            g = _over_clients(all_of, x, (self.buffers, *block))  # (S, B, d)
            squares = squares + ((g * g).sum(-1) * weights).sum(1, keepdim=True)
            mean = mean + (g * weights[..., None]).sum(1)
        mean = torch.as_tensor(mean)
        return (torch.as_tensor(squares) - (mean * mean).sum(-1, keepdim=True)).clamp(min=0)

    def loss(self, x: Tensor) -> Tensor:
        """f_i(x), with the model in evaluation mode: (S, 1)."""
        task, total = self.task, torch.zeros(len(self.rows), 1, device=x.device, dtype=x.dtype)

        def one(x: Tensor, own: Tensor, w: Tensor, *block: Tensor) -> Tensor:
            output = output_of(task, task.evaluation_model, task.state_dict(x, own), block)
            return losses_of(task, output, block) @ w

        for block, weights in self._blocks(None, self.limit):
            total = total + _over_clients(one, x, (self.buffers, weights, *block))[:, None]
        if task.l2:
            total = total + task.l2 / 2 * (turned(task, x) * x).sum(-1, keepdim=True)
        return total

    def features(self, x: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        """The outputs (S, m, …) of the layers that have parameters, with the model in evaluation mode."""
        task = self.task
        model = task.evaluation_model
        layers = {n: m for n, m in model.named_modules() if next(_own(m), None) is not None}

        def one(inputs: Tensor, x: Tensor, own: Tensor) -> dict[str, Tensor]:
            found: dict[str, Tensor] = {}
            hooks = [m.register_forward_hook(_note(found, n or "model")) for n, m in layers.items()]
            try:
                functional_call(model, task.state_dict(x, own), (inputs,))
            finally:
                for hook in hooks:
                    hook.remove()
            return found

        def run(x: Tensor, buffers: Tensor, inputs: Tensor) -> dict[str, Tensor]:
            return _over_clients(partial(one, inputs), x, (buffers,))

        return self.replays("features", run, x, self.buffers, inputs)


def _plain(x: Tensor) -> Tensor:
    """A point that all clients share, as a vector."""
    return x if len(x) > 1 else x[0]


def _own(module: nn.Module) -> Iterator[nn.Parameter]:
    return module.parameters(recurse=False)


def _note(found: dict[str, Tensor], name: str) -> Callable[..., None]:
    def hook(module: nn.Module, given: Any, output: Any) -> None:
        found[name] = output[0] if isinstance(output, tuple) else output

    return hook


def _over_clients(one: Callable[..., Any], x: Tensor, more: tuple[Tensor, ...]) -> Any:
    """A function of one client, for all of them; the point is the same for all if it has one row."""
    if len(more[0]) == 1:  # also functions that cannot be stacked
        found = one(x[0], *(t[0] for t in more))
        alone = isinstance(found, Tensor)
        return found[None] if alone else {n: t[None] for n, t in found.items()}
    dims = (0 if len(x) > 1 else None, *(0 for _ in more))
    return vmap(one, in_dims=dims, randomness="different")(x if len(x) > 1 else x[0], *more)


def _first_that_works(
    ways: list[Callable[..., Tensor]], task: Task, x: Tensor, more: tuple[Tensor, ...]
) -> Tensor:
    """One of several ways to compute the same; some operators lack a forward derivative, or a second one backwards."""
    for place in range(task.memo.get("second", 0), len(ways) - 1):
        try:
            found = _over_clients(ways[place], x, more)
        except RuntimeError:  # also NotImplementedError, which is one
            continue
        task.memo["second"] = place
        return found
    task.memo["second"] = len(ways) - 1
    return _over_clients(ways[-1], x, more)
