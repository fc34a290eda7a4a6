"""What is trained: a model, a loss and the clients' data, as functions of one flat vector.

All trainable parameters are one vector of length d; the model sees views of it. Buffers
(BatchNorm statistics) are a second vector, averaged like parameters and never seen by a method.
A problem given by plain functions of a vector is a model whose only parameter is that vector.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fairlead.data.checks import as_tensor, check_data, check_model, check_signs, check_split, whole
from fairlead.data.images import Transform
from fairlead.data.splits import Split
from fairlead.describe import described
from fairlead.task.domain import Simplex
from fairlead.errors import FairleadError, unknown
from fairlead.task.evaluation import Spread, client_losses, client_weights, evaluated, objective_of
from fairlead.gradients.task_gradients import Block, Gradients
from fairlead.task.layout import Layout
from fairlead.task.losses import LOSSES, METRICS, Loss, Metric, Whole
from fairlead.task.build import Function, Made
from fairlead.gradients.oracle import Alone, Form, Oracle
from fairlead.gradients.capture import is_traceable

__all__ = ["Block", "Task"]


class Task(Made, Gradients):
    """A model, a per-sample loss, data and their split among clients.

    model: an `nn.Module` (its present weights are the start), or a function that makes one,
        called under the run's seed.
    loss: "cross_entropy", "logistic", "squared", or a function (output, target) → (B,).
    data: tensors with one row a sample: the model's input, then the target.
    clients: one index list a client, for example from `fairlead.splits`.
    test: held-out tensors like `data`; `metrics`: functions (output, target) → (B,) by name, or
        `fl.Whole(…)` of one that needs all outputs at once, such as `fl.losses.auc`.
    l2: adds l2/2·‖x‖² to every client's objective (for a saddle task l2/2·(‖x‖² − ‖y‖²)).
    noise: standard deviation of Gaussian noise added to every coordinate of step gradients.
    transform: makes numbers of the inputs where they are used, see `fl.Images`.
    keep: where the data lie. "device" brings them there; "host" leaves them, also memory-mapped arrays
        (`np.load(file, mmap_mode="r")`), and brings each step's samples while the one before is
        computed. By default mapped arrays and what is too large for the device stay.
    optimum: the minimizer for uniform weights, if it is known; then runs record the distance to it.
    record: whether the loss depends on its arguments alone, so that its operators may be recorded
        (see `fairlead.gradients.capture`); by default only the named losses are taken to.

    >>> x, y = torch.randn(20, 3), torch.randint(2, (20,))
    >>> task = Task(nn.Linear(3, 2), "cross_entropy", (x, y), [range(12), range(12, 20)])
    >>> task.dim, task.clients, task.sizes
    (8, 2, array([12,  8]))
    """

    domain: Simplex | None = None
    spread: Spread | None = None  # set where several processes share the work

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: str | Loss,
        data: Sequence[Tensor | NDArray[Any]],
        clients: Split | Sequence[ArrayLike],
        *,
        test: Sequence[Tensor | NDArray[Any]] | None = None,
        metrics: Mapping[str, Metric | Whole] | None = None,
        l2: float = 0.0,
        noise: float = 0.0,
        transform: Transform | None = None,
        keep: Literal["auto", "device", "host"] = "auto",
        optimum: Tensor | None = None,
        record: bool | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        name: str = "task",
    ) -> None:
        if isinstance(loss, str) and loss not in LOSSES:
            raise unknown("loss", loss, LOSSES)
        self.name, self.l2, self.noise = name, float(l2), float(noise)
        if self.l2 < 0 or self.noise < 0:
            raise FairleadError("l2 and noise are zero or positive")
        if not isinstance(data, tuple | list):
            raise FairleadError("data are tensors: give a tuple such as (inputs, targets)")
        self.make = None if isinstance(model, nn.Module) else model
        self.loss: Loss = LOSSES[loss] if isinstance(loss, str) else loss
        known = METRICS.get(loss, {}) if isinstance(loss, str) else {}
        self.metrics = dict(known if metrics is None else metrics)
        # how many of the data tensors the model takes; the rest goes to the loss
        self.inputs = len(data) if isinstance(model, Function) else 1
        self.split = clients if isinstance(clients, Split) else Split.of(clients)
        if keep not in ("auto", "device", "host"):
            raise unknown("place for data", keep, ["auto", "device", "host"])
        self.transform, self.keep = transform, keep
        self.mapped = keep != "device" and any(isinstance(t, np.memmap) for t in data)
        self.data = (as_tensor(data[0]), *map(whole, data[1:]))
        self.test = None if test is None else (as_tensor(test[0]), *map(whole, test[1:]))
        self.optimum = optimum
        check_data("data", self.data, values=not self.mapped)
        if self.test is not None:
            check_data("test data", self.test)
        check_split(self.split, len(self.data[0]))
        if loss == "logistic":
            check_signs(self.data[1])
        self._pure_loss = record if record is not None else isinstance(loss, str)
        self._start: dict[int, tuple[Tensor, Tensor]] = {}
        module = copy.deepcopy(model) if isinstance(model, nn.Module) else _made(model, 0)
        self._place(module, dtype, torch.device(device))
        check_model(self, loss == "cross_entropy")

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Task:
        """The task on another device or in another precision."""
        moved = copy.copy(self)
        moved._start = {}
        place = torch.device(device or self.device)
        moved._place(copy.deepcopy(self.model), dtype or self.dtype, place)
        return moved

    def _place(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        """Put the model's layout, the constants and the data on a device in a precision."""
        if device.type == "cuda" and not torch.cuda.is_available():
            raise FairleadError('torch sees no CUDA device here: use device="cpu"')
        self.dtype, self.device = dtype, device
        self.model = model.to(device=self.device, dtype=dtype).train()
        self.layout = Layout(model)
        self.dim, self.buffer_dim = self.layout.dim, self.layout.buffer_dim
        self.store = torch.device("cpu") if self._stays(device) else device
        if self.store == device and not self.mapped and self.keep != "host":
            self.data = tuple(self._cast(t) for t in self.data)
        self.test = None if self.test is None else tuple(self._cast(t) for t in self.test)
        self.optimum = None if self.optimum is None else self._cast(self.optimum)
        self.order = torch.from_numpy(self.split.order).to(self.store)
        self._first = torch.from_numpy(self.split.offsets[:-1]).to(self.store)
        norms = nn.modules.batchnorm._NormBase
        self.mixes_samples = any(isinstance(m, norms) for m in model.modules())
        random = nn.modules.dropout._DropoutNd
        self.draws_masks = any(isinstance(m, random) for m in model.modules())
        self.needs_pairs = any(isinstance(m, nn.BatchNorm1d) for m in model.modules())
        self.stackable = not any(isinstance(m, Function) and m.loose for m in model.modules())
        self.recordable = self._pure_loss and (is_traceable(model) or isinstance(model, Function))
        if self.optimum is not None and self.optimum.shape != (self.dim,):
            raise FairleadError(
                f"the optimum has shape {tuple(self.optimum.shape)}: give a vector of {self.dim}"
            )
        self._forget()

    def _stays(self, device: torch.device) -> bool:
        """Whether the data stay in the host's memory or files."""
        if self.keep != "auto" or device.type == "cpu":
            return self.keep == "host" or device.type == "cpu"
        size = sum(t.numel() * t.element_size() for t in self.data)
        return self.mapped or size > torch.cuda.mem_get_info(device)[0] / 2

    @property
    def ahead(self) -> bool:
        """Whether it pays to bring samples while others are computed on."""
        return self.mapped or self.keep == "host" or self.store != self.device

    @functools.cached_property
    def sample_bytes(self) -> int:
        """Bytes of one sample where it is stored."""
        return max(1, sum(t.nbytes // max(1, len(t)) for t in self.data))

    def _forget(self) -> None:
        self._oracles: dict[Form, Oracle] = {}
        self._alone = Alone(self)
        self.least: tuple[Tensor, Tensor] | None = None
        self.sample_weights: dict[Any, Tensor] = {}

    # -- layout ---------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.split)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples a client."""
        return self.split.sizes

    @property
    def layers(self) -> dict[str, slice]:
        """Where each parameter lies in the vector."""
        return self.layout.layers

    def start(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """The parameters and buffers before training."""
        if seed not in self._start:
            model = self.model
            if self.make is not None:
                model = _made(self.make, seed).to(device=self.device, dtype=self.dtype)
            self._start = {seed: self.layout.flatten(model, self.dtype)}
        x, buffers = self._start[seed]
        return x.clone(), buffers.clone()

    def views(self, x: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views of the vector."""
        return self.layout.views(x)

    def state_dict(self, x: Tensor, buffers: Tensor | None = None) -> dict[str, Tensor]:
        """The model's `state_dict` with the parameters `x`, to load into an `nn.Module`."""
        buffers = self.start()[1] if buffers is None else buffers
        layout = self.layout
        return {**layout.views(x), **layout.fixed, **layout.buffer_views(buffers)}

    def fingerprint(self) -> dict[str, Any]:
        """What tells this task from others; mapped files are told by their shapes alone."""
        data = [str(t.shape) if self.mapped else t for t in self.data]
        fixed = {"dim": self.dim, "l2": self.l2, "noise": self.noise, "dtype": str(self.dtype)}
        made = {"split": [self.split.order, self.split.offsets], "transform": self.transform}
        return described({**fixed, "data": data, "layers": self.layers, **made})

    def hold(self, clients: NDArray[np.int64]) -> None:
        """Keep the data of these clients alone, on the task's device."""
        mine = np.isin(np.repeat(np.arange(self.clients), self.sizes), clients)
        rows = torch.from_numpy(self.split.order[mine])
        self.data = self.taken(self.data, rows)
        self.store, self.mapped, self.keep = self.device, False, "device"
        order = torch.full((len(mine),), -1)  # those of others are not here
        order[torch.from_numpy(mine)] = torch.arange(len(rows))
        self.order = order.to(self.device)
        self._first = self._first.to(self.device)
        self._forget()

    def twin(self) -> Task:
        """The same task with a model of its own, for another thread: `functional_call` changes
        the model while it runs."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        other._forget()
        other._alone = self._alone  # what is recorded needs no model
        return other

    # -- evaluation -----------------------------------------------------------------------------

    def client_weights(self, weighting: str | Sequence[float] = "uniform") -> NDArray[np.float64]:
        """The weight of every client in the objective; they sum to one."""
        return client_weights(self.sizes, weighting)

    def knows_optimum(self, weighting: str | Sequence[float] = "uniform") -> bool:
        """Whether the optimum is that of the objective with these weights."""
        if self.optimum is None:
            return False
        return np.allclose(self.client_weights(weighting), self.client_weights())

    def recorded(self, weighting: str | Sequence[float], objective: bool) -> list[str]:
        """The names of what `evaluate` measures."""
        known = ["loss"] * objective + ["test_loss", *self.metrics] * (self.test is not None)
        return known + ["distance", "gap"][: 1 + objective] * self.knows_optimum(weighting)

    def objective(
        self,
        x: Tensor,
        weighting: str | Sequence[float] = "uniform",
        buffers: Tensor | None = None,
        block: int = 4096,
    ) -> Tensor:
        """f(x) = Σ p_i f_i(x) over all clients' data, with the model in evaluation mode."""
        return objective_of(self, x, weighting, buffers, block)

    def evaluate(
        self,
        x: Tensor,
        buffers: Tensor | None = None,
        weighting: str | Sequence[float] = "uniform",
        objective: bool = True,
    ) -> dict[str, float]:
        """The objective, the test metrics and, where the optimum is known, the distance to it."""
        return evaluated(self, x, buffers, weighting, objective)

    def client_losses(self, x: Tensor, buffers: Tensor | None = None) -> Tensor:
        """f_i(x) of every client, to see who is served badly."""
        with torch.no_grad():
            return client_losses(self, x, buffers)


def _made(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
