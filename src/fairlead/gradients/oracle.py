"""Gradients of many clients at once, each at its own point, in one of several forms.

`vmap` lets torch turn a client's gradient into that of all; `batched` writes the layers for a matrix of
clients (see `fairlead.gradients.stacked`); `each` takes one client after another, on a GPU on a few streams, which
pays for large models inside a CUDA graph. All give the same gradients up to rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.func import grad, vmap

from fairlead.gradients.deferred import Product, merged
from fairlead.gradients.capture import traced

if TYPE_CHECKING:
    from fairlead.gradients.task_gradients import Block, Gradients

Way: TypeAlias = Literal["vmap", "batched", "each"]
STREAMS = 4


@dataclass(frozen=True)
class Form:
    """How gradients are computed.

    half: in bfloat16, from and to vectors of full precision. compiled: by `torch.compile`. last: one
    client's images with their channels last, which a CPU's convolutions may like better.
    """

    way: Way = "vmap"
    half: bool = False
    compiled: bool = False
    last: bool = False

    def __str__(self) -> str:
        return self.way + ", compiled" * self.compiled + ", bfloat16" * self.half


class Oracle:
    """The gradients of a task in one form, with what was recorded of them."""

    @property
    def recordings(self) -> int:
        """How many shapes have been recorded."""
        return len(self._known)

    def __init__(self, task: Gradients, form: Form) -> None:
        self.task, self.form = task, form
        self._known: dict[Any, Callable[..., Any]] = {}
        self._seen: Counter[Any] = Counter()
        self._streams: list[Any] = []

    def __call__(
        self, x: Tensor, block: Block, weights: Tensor | None, buffers: Tensor, record_after: int
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the data loss. x is (d,) or (S, d), the block's tensors are (S, B, …), sample
        weights and buffers are (S, B) and (S, nb); returns (S, d) and the buffers after the pass. A
        shape is recorded when it has come so many times."""
        if self.form.compiled and x.dim() == 1:  # one program for the first step and the others
            x = x.expand(len(block[0]), -1).contiguous()
        arguments = (x, weights, buffers, *block)
        key = tuple(None if t is None else t.shape for t in arguments)
        run = self._known.get(key)
        if run is None:
            run, task = self._run(x, weights, block), self.task
            self._seen[key] += 1
            after = 1 if self.form.compiled else record_after
            if task.recordable and self.form.way != "each" and self._seen[key] >= after:
                run = self._known[key] = traced(run, arguments, self.form.compiled)
        return run(*arguments)

    def _run(self, x: Tensor, weights: Tensor | None, block: Block) -> Callable[..., Any]:
        if self.form.way == "batched":
            return self._batched
        if self.form.way == "each":
            return self._each
        dims = (None if x.dim() == 1 else 0, None if weights is None else 0, 0)
        one = grad(self.task.mean_loss, has_aux=True)
        return vmap(one, in_dims=(*dims, *(0 for _ in block)), randomness="different")

    def _batched(
        self, x: Tensor, weights: Tensor | None, buffers: Tensor, *block: Tensor
    ) -> tuple[Tensor, Tensor]:
        task, count = self.task, len(block[0])
        run = by_hand(task)
        assert run is not None
        leaf = x.detach().expand(count, -1).requires_grad_()
        with torch.enable_grad():
            point = leaf.to(torch.bfloat16) if self.form.half else leaf
            inputs = block[0].to(point.dtype)
            output = run(task.layout.stacked_views(point), inputs).to(x.dtype)
            flat = [t.flatten(0, 1) for t in (output, *block[1:])]
            losses = task.loss(flat[0], *flat[1:]).unflatten(0, block[0].shape[:2])
            # each client's gradient is its own: their losses share no parameter
            total = losses.mean(1).sum() if weights is None else (losses * weights).sum()
            (g,) = torch.autograd.grad(total, leaf)
        return g, buffers

    def _each(
        self, x: Tensor, weights: Tensor | None, buffers: Tensor, *block: Tensor
    ) -> tuple[Tensor, Tensor]:
        task, count = self.task, len(block[0])
        g, after = torch.empty(count, x.shape[-1], dtype=x.dtype, device=x.device), [buffers[:0]]
        if not self._streams:
            self._streams = [torch.cuda.Stream(x.device) for _ in range(STREAMS)]
        here = torch.cuda.current_stream(x.device)
        for stream in self._streams:
            stream.wait_stream(here)
        for s in range(count):
            with torch.cuda.stream(self._streams[s % STREAMS]):
                own = x if x.dim() == 1 else x[s]
                mine = None if weights is None else weights[s]
                one = tuple(t[s] for t in block)
                g[s], moved = task.grad_block(own, one, buffers[s], mine)
                after.append(moved[None])
        for stream in self._streams:
            here.wait_stream(stream)
        return g, torch.cat(after)


class Alone:
    """The gradient of one client, parameter by parameter; shapes that come often are recorded.

    apart: on a CPU, gradients of recorded shapes that are matrix products are left as the two sides, so that
    they are multiplied into the sum that they go to. A method that needs them twice ends that.
    """

    def __init__(self, task: Gradients) -> None:
        self.task = task
        self.apart = True
        self._known: dict[Any, Callable[..., Any]] = {}
        self._seen: Counter[Any] = Counter()

    @property
    def recordings(self) -> int:
        """How many shapes have been recorded."""
        return len(self._known)

    def together(self) -> None:
        """Compute products from now on."""
        self.apart = False

    def __call__(
        self, task: Gradients, x: Tensor, block: Block, buffers: Tensor, late: bool = False
    ) -> tuple[list[Any], Tensor]:
        """The gradients at x on a block (B, …), and the buffers after the pass. `task` has a model that
        this thread alone uses. late: as parts of a `Vector`, which may be products that are not computed yet."""
        late = late and self.apart
        key = (late, *(t.shape for t in block))
        run = self._known.get(key)
        if run is None:
            run = task.parts_of_gradient
            # a recording patches torch for a moment: not while other threads compute
            if task.recordable and task.model is self.task.model:
                self._seen[key] += 1
                if self._seen[key] >= task.record_after:
                    run = self._known[key] = traced(run, (x, None, buffers, *block), products=late)
        parts, buffers = run(x, None, buffers, *block)
        if late and key in self._known:
            return [Product(*g) if isinstance(g, tuple) else g for g in parts], buffers
        return merged(parts) if late else parts, buffers


def by_hand(task: Gradients) -> Callable[..., Tensor] | None:
    """The task's model for a matrix of clients, if its layers are known."""
    from fairlead.gradients.stacked import batched  # its kernels are only loaded where they are used

    return batched(task.model)


def forms_of(task: Gradients, half: bool) -> list[Form]:
    """The forms that can compute a task's gradients on its device, not compiled."""
    has_own = any(isinstance(m, torch.nn.Conv2d) for m in task.model.modules())
    found = [Form("vmap", half)]
    if has_own and task.recordable and by_hand(task) is not None:
        found.append(Form("batched", half))
    if has_own and task.device.type == "cuda":
        found.append(Form("each", half))
    return found
