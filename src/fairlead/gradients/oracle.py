"""The gradient oracle of a run: the gradients of its task, of many clients at once or of one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from fairlead.gradients.capture import traced
from fairlead.gradients.deferred import Space
from fairlead.gradients.draws import Draws
from fairlead.gradients.form import Form
from fairlead.gradients.replays import Replays
from fairlead.gradients.segments import Product, joined, segments
from fairlead.gradients.stacked import compiled_only, in_tf32, stacked_model, twice
from fairlead.task.samples import losses_of, output_of
from fairlead.task.task import Block, Task

CAPTURES = 32
"""How many shapes are kept captured. Further ones are run as they are, unless captured operators round differently:
then one that comes back after more others is captured again."""
_CAPTURED: WeakKeyDictionary[Task, dict[Form, OrderedDict[Any, Callable[..., Any]]]] = (
    WeakKeyDictionary()
)
"""What was captured of a task's gradients, by form, shape and whether products are in TF32: a function of these alone, so
all runs of a task share it."""


class Gradients:
    """The gradients of a task in one form, with what was captured of them.

    >>> import fairlead as fl
    >>> task = fl.problems.quadratics([[[2.0]], [[4.0]]], [[0.0], [0.0]])
    >>> oracle = Gradients(task)
    >>> clients = np.array([0, 1])
    >>> oracle.full_stacked(clients, torch.ones(1, dtype=task.dtype), task.start()[1], 10)[0]
    tensor([[2.],
            [4.]], dtype=torch.float64)
    """

    def __init__(self, task: Task, form: Form | None = None) -> None:
        self.task, self.form = task, form or Form()
        self.space = Space(segments([p.size for p in task.layout.parameters]), task.dtype)
        how = replace(self.form, capture=(), compiled=False)
        self._captured = _CAPTURED.setdefault(task, {}).setdefault(how, OrderedDict())
        self.used: set[Any] = set()
        self.replays = Replays(task.capturable and not task.draws_masks)
        """What measures compute beyond gradients."""
        self.recent: dict[str, tuple[Any, ...]] = {}
        """What measures have drawn and gathered last, by what it depends on."""
        self._replayed: dict[Form, Gradients] = {}
        self._again = False
        self._layers = stacked_model(task.model) if self.form.way == "stacked" else None

    @property
    def captured(self) -> int:
        """How many captured shapes this oracle has used."""
        return len(self.used)

    def replayed(self, form: Form | None = None) -> Gradients:
        """The gradients in a form, for measures: those of many clients are captured and replayed on a GPU."""
        form = form or self.form
        if form not in self._replayed:
            found = self._replayed[form] = Gradients(self.task, form)
            found.replays, found._again = self.replays, True
        return self._replayed[form]

    def _run(
        self, run: Callable[..., Any], arguments: tuple[Tensor | None, ...], width: int, **how: bool
    ) -> Callable[..., Any]:
        """`run`, or what was captured of it for arguments of these shapes."""
        if not self._captures(width):
            return run
        key = (in_tf32(), len(how), *(None if t is None else t.shape for t in arguments))
        if key not in self._captured:
            if len(self.used) >= CAPTURES and not self.form.kernels:
                return run  # so many shapes do not come back often enough to pay
            found = traced(run, arguments, self.form, **how)
            if found is None:  # it draws random numbers
                self.form = replace(self.form, capture=())
                return run
            self._captured[key] = found
            if len(self._captured) > CAPTURES:
                self._captured.popitem(last=False)
        self._captured.move_to_end(key)
        self.used.add(key)
        return self._captured[key]

    def _captures(self, width: int) -> bool:
        task = self.task
        return task.capturable and not task.draws_masks and self.form.captures(width)

    def _drawing(self, keys: Tensor | None, together: bool, first: int = 0) -> Any:
        """Where the model draws, it draws by the clients' keys."""
        if keys is None or not self.task.draws_masks:
            return nullcontext()
        return Draws(keys, together, first)

    # -- many clients ---------------------------------------------------------------------------

    def mean_loss(
        self, x: Tensor, weights: Tensor | None, buffers: Tensor, *block: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The mean loss of a block, and the buffers after the pass."""
        views = self._shortened(self.task.layout.views(x))
        losses, buffers = self._losses(views, block, buffers)
        return losses.mean() if weights is None else (losses * weights).sum(), buffers

    def _shortened(self, views: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The parameters in the precision of the gradients. Each is converted on its own: matrices that lie apart
        are aligned, which doubles the speed of products on a GPU."""
        return {n: v.to(torch.bfloat16) for n, v in views.items()} if self.form.half else views

    def _losses(
        self, point: Mapping[str, Tensor], block: Block, buffers: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One loss per sample at parameters by name, and the buffers after the pass."""
        task = self.task
        # copies: layers change buffers in place, which under vmap works only on whole tensors
        named = {n: b.clone() for n, b in task.layout.buffer_views(buffers).items()}
        full, given, count = buffers.dtype, block, task.arrangement.count
        if self.form.half:
            inputs = (t.to(torch.bfloat16) if t.is_floating_point() else t for t in block[:count])
            given = (*inputs, *block[count:])
        output = output_of(task, task.step_model, {**point, **task.layout.fixed, **named}, given)
        losses = losses_of(task, self._full(output, full), block)
        if named:
            buffers = torch.cat([named[n].reshape(-1).to(full) for n in named])
        return losses, buffers

    def _full(self, output: Any, dtype: torch.dtype) -> Any:
        """A model's output in full precision, whatever it consists of."""
        if isinstance(output, Tensor):
            return output.to(dtype)
        return tree_map(
            lambda t: t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t, output
        )

    def stacked(
        self,
        x: Tensor,
        block: Block,
        weights: Tensor | None,
        buffers: Tensor,
        keys: Tensor | None = None,
        first: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the data loss. x is (d,) or (S, d), the block's tensors are (S, B, …), sample
        weights and buffers are (S, B) and (S, nb); returns (S, d) and the buffers after the pass. keys: of
        the clients, for what the model draws; first: the position of the block's first sample."""
        arguments = (x, weights, buffers, *block)
        run = self._by_layers if self.form.way == "stacked" else self._by_vmap
        with self._drawing(keys, True, first):
            run = self._run(run, arguments, block[0].shape[1])
            if self._again and not self.task.draws_masks:
                return self.replays(f"gradients by {self.form}", run, *arguments)
            return run(*arguments)

    def _by_vmap(
        self, x: Tensor, weights: Tensor | None, buffers: Tensor, *block: Tensor
    ) -> tuple[Tensor, Tensor]:
        dims = (None if x.dim() == 1 else 0, None if weights is None else 0, 0)
        one = grad(self.mean_loss, has_aux=True)
        run = vmap(one, in_dims=(*dims, *(0 for _ in block)), randomness="different")
        return run(x, weights, buffers, *block)

    def _by_layers(
        self, x: Tensor, weights: Tensor | None, buffers: Tensor, *block: Tensor
    ) -> tuple[Tensor, Tensor]:
        views = self.task.layout.stacked_views(x.detach().expand(len(block[0]), -1))
        leaves = {n: v.detach().requires_grad_() for n, v in self._shortened(views).items()}
        with torch.enable_grad():
            total = self._summed_loss(leaves, weights, block)
            found = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        return torch.cat([g.flatten(1) for g in found], 1).to(x.dtype), buffers

    def compile_kernels(
        self, x: Tensor, block: Block, weights: Tensor | None, buffers: Tensor
    ) -> None:
        """Compile the kernels of `stacked` on a GPU, several at a time, without a gradient."""
        if self._layers is not None:
            with compiled_only():
                self._by_layers(x, weights, buffers, *block)

    def _summed_loss(
        self, views: Mapping[str, Tensor], weights: Tensor | None, block: Block
    ) -> Tensor:
        """The sum of the clients' losses by layers; each client's gradient is its own, as they share no parameter."""
        task, run = self.task, self._layers
        assert run is not None
        inputs = block[0].to(torch.bfloat16) if self.form.half else block[0].to(task.dtype)
        output = run(views, inputs).to(task.dtype)
        flat = tuple(t.flatten(0, 1) for t in block)
        losses = losses_of(task, output.flatten(0, 1), flat).unflatten(0, block[0].shape[:2])
        return losses.mean(1).sum() if weights is None else (losses * weights).sum()

    def products_by_layers(
        self, x: Tensor, v: Tensor, weights: Tensor | None, buffers: Tensor, *block: Tensor
    ) -> Tensor:
        """Hessian-vector products (S, m, d) of the data losses with the rows of v, by differentiating twice by layers."""
        leaf = x.detach().expand(len(v), -1).requires_grad_()
        with torch.enable_grad(), twice():
            views = self._shortened(self.task.layout.stacked_views(leaf))
            total = self._summed_loss(views, weights, block)
            (g,) = torch.autograd.grad(total, leaf, create_graph=True)
            rows = [
                torch.autograd.grad((g * row).sum(), leaf, retain_graph=True)[0]
                for row in v.unbind(1)
            ]
        return torch.stack(rows, 1)

    def full_stacked(
        self,
        clients: NDArray[np.int64],
        x: Tensor,
        buffers: Tensor,
        limit: int,
        keys: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The full local gradients of S clients, with at most `limit` samples at a time, and the
        buffers after the pass."""
        task = self.task
        sizes, owners = task.sizes[clients], torch.from_numpy(clients).to(task.store)
        rows = buffers.expand(len(clients), -1) if buffers.dim() == 1 else buffers
        n = torch.from_numpy(sizes).to(task.device)
        return self.full_padded(owners, n, int(sizes.max()), x, rows, limit, keys)

    def full_padded(
        self,
        owners: Tensor,
        sizes: Tensor,
        largest: int,
        x: Tensor,
        buffers: Tensor,
        limit: int,
        keys: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`full_stacked` of clients of these sizes, at most `largest`, with everything on the device."""
        task, n, count = self.task, sizes[:, None], len(sizes)
        # a model that mixes samples sees all of a client's at once
        width = largest if task.mixes_samples else max(1, min(largest, limit // count))
        total: Tensor | float = 0.0
        for first in range(0, largest, width):
            index = first + torch.arange(width, device=task.device).expand(count, width)
            weights = (index < n).to(task.dtype) / n
            block = task.samples(owners, torch.where(index < n, index, 0).to(task.store))
            g, buffers = self.stacked(x, block, weights, buffers, keys, first)
            total = total + g
        return task.regularised(torch.as_tensor(total), x), buffers

    # -- one client -----------------------------------------------------------------------------

    def plain(
        self, x: Tensor, block: Block, buffers: Tensor, keys: Tensor | None = None, first: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The gradient of one client's data loss on a block (B, …), by plain autograd."""
        leaf = x.detach().requires_grad_()
        with torch.enable_grad(), self._drawing(keys, False, first):
            loss, buffers = self.mean_loss(leaf, None, buffers, *block)
            (g,) = torch.autograd.grad(loss, leaf)
        return g, buffers.detach()

    def single(
        self, x: Tensor, block: Block, buffers: Tensor, keys: Tensor | None = None, first: int = 0
    ) -> tuple[Any, Tensor]:
        """The gradient of one client on a block (B, …): a tensor, or a deferred `Vector`."""
        arguments, late = (x, None, buffers, *block), bool(self.form.deferred)
        how = {"segmented": late, "products": self.form.deferred == "products"} if late else {}
        run = self._run(self._by_parameter, arguments, len(block[0]), **how)
        with self._drawing(keys, False, first):
            parts, buffers = run(*arguments)
        if not late:
            return torch.cat([g.reshape(-1) for g in parts]), buffers
        if run == self._by_parameter:
            return self.space.vector(joined(parts)), buffers
        fast = self.form.onednn
        made = [Product(g[0], g[1], fast) if isinstance(g, tuple) else g for g in parts]
        return self.space.vector(made), buffers

    def _by_parameter(
        self, x: Tensor, weights: None, buffers: Tensor, *block: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """The gradient by parameter, so that its parts need not be put together."""
        views = self._shortened(self.task.layout.views(x.detach()))
        leaves = {n: v.detach().requires_grad_() for n, v in views.items()}
        with torch.enable_grad():
            losses, buffers = self._losses(leaves, block, buffers)
            found = torch.autograd.grad(
                losses.mean(), list(leaves.values()), materialize_grads=True
            )  # zero where the loss does not use a parameter
        return [g.to(x.dtype) for g in found], buffers.detach()

    def full_single(
        self, client: int, x: Tensor, buffers: Tensor, limit: int, keys: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """The full local gradient of one client, block by block, and the buffers after it."""
        task, n = self.task, int(self.task.sizes[client])
        owner = torch.tensor([client], device=task.store)
        total: Any = 0.0
        for index in torch.arange(n, device=task.store).split(n if task.mixes_samples else limit):
            block = tuple(t[0] for t in task.samples(owner, index[None]))
            g, buffers = self.single(x, block, buffers, keys, int(index[0]))
            g = g if len(index) == n else len(index) / n * g
            total = g if len(index) == n else total + g
        return task.regularised(total, x), buffers


def ways(task: Task) -> list[Form]:
    """The ways that can compute the gradients of many clients of a task on its device."""
    convolves = any(isinstance(m, torch.nn.Conv2d) for m in task.model.modules())
    pays = convolves or task.device.type == "cuda"
    stacks = pays and task.capturable and stacked_model(task.model) is not None
    return [Form("vmap"), *([Form("stacked")] if stacks else [])]
