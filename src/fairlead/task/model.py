"""Models before training: made under a seed, in evaluation mode, and refused if they do not fit the data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fairlead.data.checks import check_labels
from fairlead.data.images import Transform
from fairlead.errors import FairleadError
from fairlead.rng import own_generators
from fairlead.task.losses import logits
from fairlead.task.samples import losses_of, output_of, prepared, taken


def check_model(task: Any, classes_on: int | None) -> None:
    """One forward pass on two samples of the data, and of the test data, so that a mismatch shows
    before training. classes_on: the axis of the output that the labels number, if they are classes."""
    for data in (task.data, task.test):
        if data is not None:
            with own_generators():
                block = _check_block(task, data, classes_on)
            task.draws_masks = task.draws_masks or _draws(task, task.model, block)
            task.draws_always = task.draws_always or _draws(task, task.evaluation_model, block)


def _transformed(task: Any, block: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    try:
        return prepared(task, block)
    except Exception as error:  # the user's own code
        raise FairleadError(
            f"the transform failed on samples of shape {tuple(block[0].shape)}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _check_block(task: Any, data: tuple[Tensor, ...], classes_on: int | None) -> tuple[Tensor, ...]:
    block = _transformed(task, taken(task, data, torch.arange(min(2, len(data[0])))))
    x, _ = task.start(0)
    try:
        output = output_of(task, task.evaluation_model, task.state_dict(x), block)
        if classes_on is not None and not data[-1].is_floating_point():
            check_labels(data[-1], logits(output).shape[classes_on])
        losses = losses_of(task, output, block)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        shapes = " and ".join(str(tuple(t.shape)) for t in block)
        raise FairleadError(
            f"the model and the loss do not fit samples of shapes {shapes}: {error}{_hint(task, block, error)}"
        ) from error
    if losses.shape != (len(block[0]),):
        raise FairleadError(
            f"the loss returned shape {tuple(losses.shape)} for {len(block[0])} samples: "
            'return one value per sample, for example with reduction="none"'
        )
    return block


def _hint(task: Any, block: tuple[Tensor, ...], error: Exception) -> str:
    """What to do about a misfit, if it is a common one."""
    if block[0].dtype == torch.uint8 and task.transform is None:
        return "; for uint8 images give transform=fl.Images.of(x)"
    several = task.arrangement.count > 1 and isinstance(error, TypeError)
    if several and block[0].shape == block[1].shape and not block[1].is_floating_point():
        return "; padded lists come with a mask, so the model must take (tokens, mask)"
    return ""


def _draws(task: Any, model: nn.Module, block: tuple[Tensor, ...]) -> bool:
    """Whether a model or the loss draws random numbers."""
    cuda = task.device.type == "cuda"
    state: Any = torch.cuda.get_rng_state if cuda else torch.get_rng_state
    with torch.random.fork_rng(devices=[task.device] if cuda else []), torch.no_grad():
        before = state(task.device) if cuda else state()
        try:
            output = output_of(task, model, task.state_dict(task.start(0)[0]), block)
            losses_of(task, output, block)
        except (RuntimeError, ValueError):
            return False  # BatchNorm of a single sample: batches are checked elsewhere
        return not torch.equal(before, state(task.device) if cuda else state())


def in_evaluation_mode(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, with the same parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(t): t for t in tensors}).eval()


def is_capturable(model: nn.Module) -> bool:
    """Whether a model's operators depend only on shapes."""
    ours = ("torch.nn.", "fairlead.task.models", "fairlead.task.recurrent")
    own = all(type(m).__module__.startswith(ours) for m in model.modules())
    random = any(isinstance(m, nn.modules.dropout._DropoutNd) for m in model.modules())
    plain = not random and not any(True for _ in model.buffers())
    return own and plain and not any(has_hooks(m) for m in model.modules())


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks, which may do anything."""
    return any(
        getattr(module, name)
        for name in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
        )
    )


class WithTransform(nn.Module):
    """A trained model that converts its inputs as the task did: for images, bytes to normalised numbers."""

    def __init__(self, transform: Transform, model: nn.Module) -> None:
        super().__init__()
        self.transform, self.model = transform, model

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        dtype = next(self.model.parameters()).dtype
        return self.model(self.transform(x, dtype), *more)

    def extra_repr(self) -> str:
        return f"(transform): {self.transform}"


def trained_model(
    task: Any, x: Tensor, buffers: Tensor | None = None, transform: bool = True
) -> nn.Module:
    """The task's module with the given weights and buffers, in evaluation mode; with `transform` it takes inputs as
    they are in the data."""
    model = copy.deepcopy(task.model)
    values = task.state_dict(x, buffers)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            tensor.copy_(values[name])
    if transform and task.transform is not None:
        model = WithTransform(task.transform, model)
    return model.eval()


def made(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model made under a seed."""
    with own_generators(seed):
        return make()
