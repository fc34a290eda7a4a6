"""Recording a vectorised gradient as a flat list of operators.

`vmap` and `grad` interpret a model's Python anew at every call, which costs more than the
arithmetic of a small model. Once a shape has come up a few times, the operators they issue are
recorded and replayed: the same operators on the same values, so the results are equal to the bit.
Only models made of torch's own layers are recorded, and only those without buffers or dropout:
what they do depends on nothing but their inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

TRACE_AFTER = 4  # calls of one shape before it is recorded: recording costs about fifty of them


def is_traceable(model: nn.Module) -> bool:
    """Whether a model's operators depend on shapes alone."""
    own = all(type(m).__module__.startswith("torch.nn.") for m in model.modules())
    random = any(isinstance(m, nn.modules.dropout._DropoutNd) for m in model.modules())
    return own and not random and not any(True for _ in model.buffers())


def traced(
    run: Callable[..., tuple[Tensor, Tensor]], arguments: tuple[Tensor | None, ...]
) -> Callable[..., tuple[Tensor, Tensor]]:
    """The recorded form of `run` for arguments of these shapes; None stays None."""
    given = [place for place, t in enumerate(arguments) if t is not None]

    def gradient(*tensors: Tensor) -> Tensor:
        full: list[Any] = [None] * len(arguments)
        for place, t in zip(given, tensors, strict=True):
            full[place] = t
        return run(*full)[0]

    graph = make_fx(gradient)(*(arguments[place] for place in given))

    def replay(*full: Tensor | None) -> tuple[Tensor, Tensor]:
        buffers = full[2]
        assert buffers is not None
        return graph(*(full[place] for place in given)), buffers

    return replay
