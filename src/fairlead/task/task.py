"""What is trained: a model, a loss and the clients' data, as functions of one flat vector.

All trainable parameters form one vector of length d; the model uses views of it. Buffers
(BatchNorm statistics) are a second vector, averaged like parameters and never seen by a method.
A problem given by plain functions of a vector is a model whose only parameter is that vector.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fairlead.core.domain import Simplex
from fairlead.data.checks import check_data, check_signs, check_split
from fairlead.data.datasets import arrays_of
from fairlead.data.held_out import first_of, held_out
from fairlead.data.images import Transform
from fairlead.data.own_test import check_test_split
from fairlead.data.splits import Split
from fairlead.describe import TRUSTED, described
from fairlead.errors import FairleadError, unknown
from fairlead.rng import own_generators
from fairlead.task import build
from fairlead.task.arrangement import Arrangement
from fairlead.task.build import Function, constructor
from fairlead.task.evaluation import (
    Spread,
    client_losses,
    client_weights,
    evaluated,
    objective_of,
    turned,
)
from fairlead.task.layout import Layout
from fairlead.task.losses import LOSSES, METRICS, Loss
from fairlead.task.metrics import AnyMetric, checked
from fairlead.task.model import check_model, has_hooks, in_evaluation_mode, is_capturable, made
from fairlead.task.objective import portrait
from fairlead.task.recurrent import written_out
from fairlead.task.samples import Block, prepared, sample_bytes, taken
from fairlead.task.torch_losses import is_cross_entropy, per_sample
from fairlead.theory.bound import Constants


class Task:
    """A model, a per-sample loss, data and their split among clients.

    model: an `nn.Module` (training starts from its current weights), or a function that builds one,
        called with the run's seed set.
    loss: "cross_entropy", "next_token", "logistic", "squared", a loss of torch such as `nn.CrossEntropyLoss()` or
        `F.mse_loss` (whatever its reduction), or a function (output, target) → (B,).
    data: tensors with one row per sample: the model's input, then the target. Several inputs are a tuple, passed in
        this order, or a dict, passed by name. Or a dataset of torch or of Hugging Face with such samples, or a list of
        datasets, one per client (see `fairlead.data.datasets`).
    clients: one index list per client, for example from `fairlead.splits`; not needed with one dataset per client.
    test: held-out data like `data`. test_clients: the test samples of every client, one index list each (which
        may be empty), for `train(per_client=True)`; by default each client is tested on a share of the test
        data with the labels that it trains on.
    metrics: what to measure on held-out data, by name: `fl.Metric(f, better="lower")` around a function
        (output, target) → (B,), or `fl.Whole(…)` around one that needs all outputs at once; plain functions
        are enough for accuracy and AUC, whose direction is known.
    valid: the share of every client's data, at least one sample from clients with ten, to hold out for choosing
        settings: `valid_loss` and the metrics as `valid_…` are recorded on it, and `fl.compare` and `fl.tune` choose
        by them. valid_seed: which samples.
    l2: adds l2/2·‖x‖² to every client's objective (for a saddle task l2/2·(‖x‖² − ‖y‖²)).
    noise: standard deviation of Gaussian noise added to every coordinate of step gradients.
    transform: converts the first input to numbers when it is used, see `fl.Images`.
    keep: where the data are stored. "device" copies them there; "host" leaves them, including memory-mapped
        arrays (`np.load(file, mmap_mode="r")`), and copies each step's samples while the previous step
        computes. By default, mapped arrays and data too large for the device stay on the host.
    optimum: the minimizer for uniform weights, if known; runs then record the distance to it.
    trust: continue runs of this task without comparing the model's code and the loss with what they were, which is
        refused if they differ or hold something that cannot be compared.
    record: whether the loss depends only on its arguments, so that its operators may be captured
        (see `fairlead.gradients.capture`); assumed by default only for the named losses.

    >>> x, y = torch.randn(20, 3), torch.randint(2, (20,))
    >>> task = Task(nn.Linear(3, 2), "cross_entropy", (x, y), [range(12), range(12, 20)])
    >>> task.dim, task.clients, task.sizes
    (8, 2, array([12,  8]))
    """

    domain: Simplex | None = None
    """The set that points must belong to, if it is not the whole space."""
    flip: Tensor | None = None
    """Signs of the coordinates of a saddle task: −1 where the objective is maximized."""
    weighting: str | Sequence[float] | None = None
    """The client weights that a saddle task was built for, if it refuses others."""
    label_names: Sequence[str] | None = None
    """The names of the classes in order of their codes, if labels were encoded."""
    draws_masks = False
    """Whether the model or the loss draws random numbers while training."""
    draws_always = False
    """Whether they do so in evaluation mode too."""
    _constants: Constants | Callable[[], Constants] | None = None
    _frozen: ClassVar[bool] = False

    from_function = constructor(build.from_function)
    from_functions = constructor(build.from_functions)
    from_arrays = constructor(build.from_arrays)
    from_torch_dataset = constructor(build.from_torch_dataset)
    from_huggingface = constructor(build.from_huggingface)
    from_table = constructor(build.from_table)
    from_csv = constructor(build.from_csv)
    from_parquet = constructor(build.from_parquet)

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: str | Loss,
        data: Any,
        clients: Split | Sequence[ArrayLike] | None = None,
        *,
        test: Any = None,
        test_clients: Split | Sequence[ArrayLike] | None = None,
        metrics: Mapping[str, AnyMetric] | None = None,
        valid: float | None = None,
        valid_seed: int = 0,
        l2: float = 0.0,
        noise: float = 0.0,
        transform: Transform | None = None,
        keep: Literal["auto", "device", "host"] = "auto",
        optimum: Tensor | None = None,
        trust: bool = False,
        record: bool | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        name: str = "task",
        label_names: Sequence[str] | None = None,
    ) -> None:
        if isinstance(loss, str) and loss not in LOSSES:
            raise unknown("loss", loss, LOSSES)
        self.name, self.l2, self.noise = name, float(l2), float(noise)
        if self.l2 < 0 or self.noise < 0:
            raise FairleadError(f"l2 is {l2} and noise is {noise}: both must be at least 0")
        data, test, self.split, transform = arrays_of(data, test, clients, transform)
        self.make = None if isinstance(model, nn.Module) else model
        torchs = None if isinstance(loss, str) else per_sample(loss)
        self.loss: Loss = LOSSES[loss] if isinstance(loss, str) else torchs or loss
        arrange, arrays = Arrangement.of(data)
        arrange = Arrangement.all_inputs(len(arrays)) if isinstance(model, Function) else arrange
        self.arrangement, self.data = arrange, arrange.tensors(arrays)
        of_torch = is_cross_entropy(loss)
        if of_torch and self.data[-1].dim() == 1 and not self.data[-1].is_floating_point():
            loss = "cross_entropy"
        known = METRICS.get(loss, {}) if isinstance(loss, str) else {}
        self.metrics = checked(known if metrics is None else metrics)
        if keep not in ("auto", "device", "host"):
            raise unknown("place for data", keep, ["auto", "device", "host"])
        self.transform, self.keep = transform, keep
        self.mapped = keep != "device" and any(isinstance(t, np.memmap) for t in arrays)
        self.test = None if test is None else arrange.tensors(arrange.arrays(test))
        self.optimum = optimum
        check_data("data", self.data, values=not self.mapped)
        if self.test is not None:
            check_data("test data", self.test)
        check_split(self.split, len(self.data[0]))
        self.test_clients = _own_test(test_clients, len(self.split), self.test)
        self.valid: tuple[Tensor, ...] | None = None
        self.valid_owners: NDArray[np.int64] | None = None  # the client that each sample is from
        if valid is not None:
            if optimum is not None:
                raise FairleadError(
                    "valid changes the training data, and so their optimum: omit one of the two, or set the "
                    "optimum of what is left with task.replace(optimum=…)"
                )
            before = self.split
            self.split, rows = held_out(self.split, valid, valid_seed, "valid", least=1)
            self.valid_owners = before.owners[first_of(before.order, rows)]
            self.valid = tuple(t[torch.from_numpy(rows).to(t.device)] for t in self.data)
        if loss == "logistic":
            check_signs(self.data[arrange.count])
        self.label_names, self.trust = label_names, trust
        pure = isinstance(loss, str) or torchs is not None
        self._pure_loss = pure if record is None else record
        module = copy.deepcopy(model) if isinstance(model, nn.Module) else made(model, 0)
        self._place(module, dtype, torch.device(device))
        check_model(
            self, -1 if loss in ("cross_entropy", "next_token") else 1 if of_torch else None
        )
        self._freeze()

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen:
            raise FairleadError(
                f"a task cannot be changed: create another one to change {name}, or use task.to(…)"
            )
        super().__setattr__(name, value)

    def _freeze(self) -> None:
        """Refuse changes from now on."""
        self.__dict__["_frozen"] = True

    def _changed(self) -> Self:
        """A copy that may still be changed."""
        other = copy.copy(self)
        other.__dict__["_frozen"] = False
        other.memo = {}
        return other

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The task on another device or in another precision."""
        moved = self._changed()
        place = torch.device(device or self.device)
        moved._place(copy.deepcopy(self.model), dtype or self.dtype, place)
        moved._freeze()
        return moved

    def replace(self, **fields: Any) -> Self:
        """The task with another optimum, metrics, l2, noise, name or trust, or with `constants` that were measured."""
        known = ["optimum", "metrics", "l2", "noise", "name", "trust", "constants"]
        for name in fields:
            if name not in known:
                raise unknown("field to replace", name, known)
        other = self._changed()
        if "constants" in fields or "l2" in fields:
            other._constants = fields.pop("constants", None)
        for name, value in fields.items():
            setattr(other, name, checked(value) if name == "metrics" else value)
        other.optimum = None if other.optimum is None else self.cast(other.optimum)
        other._freeze()
        return other

    def _place(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        """Place the model, constants and data on a device in the given precision."""
        if device.type == "cuda" and not torch.cuda.is_available():
            raise FairleadError('torch sees no CUDA device here: use device="cpu"')
        self.dtype, self.device = dtype, device
        self.model = model.to(device=self.device, dtype=dtype).train()
        self.evaluation_model = in_evaluation_mode(self.model)
        self.step_model = written_out(self.model)  # what local steps call
        self.memo: dict[Any, Any] = {}  # cached values derived from the task
        self.layout = Layout(model)
        self.dim, self.buffer_dim = self.layout.dim, self.layout.buffer_dim
        self.store = torch.device("cpu") if self._stays(device) else device
        if self.store == device and not self.mapped and self.keep != "host":
            self.data = tuple(self.cast(t) for t in self.data)
        self.sample_bytes = sample_bytes(self.data)
        # whether samples are worth fetching ahead of time
        self.ahead = self.mapped or self.keep == "host" or self.store != self.device
        self.test = None if self.test is None else tuple(self.cast(t) for t in self.test)
        self.valid = None if self.valid is None else tuple(self.cast(t) for t in self.valid)
        self.optimum = None if self.optimum is None else self.cast(self.optimum)
        self.order = torch.from_numpy(self.split.order).to(self.store)
        self.first = torch.from_numpy(self.split.offsets[:-1]).to(self.store)
        norms = nn.modules.batchnorm._NormBase
        self.mixes_samples = any(isinstance(m, norms) for m in model.modules())
        random = nn.modules.dropout._DropoutNd
        drops = any(isinstance(m, random) for m in model.modules())
        self.draws_masks = drops or self.draws_masks
        self.needs_pairs = any(isinstance(m, nn.BatchNorm1d) for m in model.modules())
        self.stackable = not any(isinstance(m, Function) and m.loose for m in model.modules())
        self.hooked = any(has_hooks(m) for m in model.modules())
        known = is_capturable(model) or isinstance(model, Function)
        self.capturable = self._pure_loss and known
        if self.optimum is not None and self.optimum.shape != (self.dim,):
            raise FairleadError(
                f"the optimum has shape {tuple(self.optimum.shape)}: must be ({self.dim},)"
            )

    def _stays(self, device: torch.device) -> bool:
        """Whether the data stay in host memory or files."""
        if self.keep != "auto" or device.type == "cpu":
            return self.keep == "host" or device.type == "cpu"
        size = sum(t.numel() * t.element_size() for t in self.data)
        return self.mapped or size > torch.cuda.mem_get_info(device)[0] / 2

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.split)

    @property
    def constants(self) -> Constants | None:
        """The constants of the problem that theorems ask for, if known: for quadratics and random games, or as
        given by `task.replace(constants=fl.theory.Constants(…))`. They are for uniform weights."""
        if callable(self._constants) and "constants" not in self.memo:
            self.memo["constants"] = self._constants()
        return self.memo["constants"] if callable(self._constants) else self._constants

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples per client."""
        return self.split.sizes

    @property
    def layers(self) -> dict[str, slice]:
        """The slice of each parameter in the vector."""
        return self.layout.layers

    def start(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """The parameters and buffers before training."""
        if self.memo.get("seed") != seed:
            model = self.model
            if self.make is not None:
                model = made(self.make, seed).to(device=self.device, dtype=self.dtype)
            self.memo.update(seed=seed, start=self.layout.flatten(model, self.dtype))
        x, buffers = self.memo["start"]
        return x.clone(), buffers.clone()

    def state_dict(self, x: Tensor, buffers: Tensor | None = None) -> dict[str, Tensor]:
        """The model's `state_dict` with the parameters `x`, to load into an `nn.Module`."""
        buffers = self.start()[1] if buffers is None else buffers
        layout = self.layout
        return {**layout.views(x), **layout.fixed, **layout.buffer_views(buffers)}

    def fingerprint(self) -> dict[str, Any]:
        """What distinguishes this task from others; mapped files count only by their shapes, and the model and
        the loss by their code and what it holds."""
        data = [str(t.shape) if self.mapped else t for t in self.data]
        fixed = {"dim": self.dim, "l2": self.l2, "noise": self.noise, "dtype": str(self.dtype)}
        what = TRUSTED if self.trust else portrait(self.model, self.loss, self.transform)
        made = {"split": [self.split.order, self.split.offsets], "objective": what}
        if self.arrangement.count > 1 and not self.arrangement.spread:
            made["arrangement"] = self.arrangement
        return described({**fixed, "data": data, "layers": self.layers, **made})

    def cast(self, t: Tensor) -> Tensor:
        """A tensor on the task's device; floats in its precision."""
        return t.to(self.device, self.dtype if t.is_floating_point() else None)

    def samples(self, client: Tensor, index: Tensor, keys: Tensor | None = None) -> Block:
        """The samples at positions `index` (S, B) of the clients (S,), gathered: (S, B, …). The
        transform is applied, and with `keys` augments them."""
        rows = self.order[(self.first[client][:, None] + index).reshape(-1)]
        block = tuple(t.unflatten(0, index.shape) for t in taken(self, self.data, rows))
        return prepared(self, block, keys)

    def regularised(self, g: Any, x: Any) -> Any:
        """The gradient of the objective from that of the data loss; for a saddle task the gradient
        mapping, whose sign is flipped where the objective is maximized."""
        g = turned(self, g)
        return g + self.l2 * x if self.l2 else g

    def client_weights(self, weighting: str | Sequence[float] = "uniform") -> NDArray[np.float64]:
        """The weight of every client in the objective; they sum to one."""
        return client_weights(self.sizes, weighting)

    def objective(
        self,
        x: Tensor,
        weighting: str | Sequence[float] = "uniform",
        buffers: Tensor | None = None,
        block: int = 4096,
    ) -> Tensor:
        """f(x) = Σ p_i f_i(x) over all clients' data, with the model in evaluation mode."""
        with self._evaluating():
            return objective_of(self, x, weighting, buffers, block)

    def evaluate(
        self,
        x: Tensor,
        buffers: Tensor | None = None,
        weighting: str | Sequence[float] = "uniform",
        objective: bool = True,
        spread: Spread | None = None,
    ) -> dict[str, float]:
        """The objective, the metrics on test and validation data and, if the optimum is known, the distance to
        it. spread: the processes that share the work."""
        with self._evaluating():
            return evaluated(self, x, buffers, weighting, objective, spread)

    def _evaluating(self) -> Any:
        """A model that draws in evaluation mode draws the same each time, and not from the user's generator."""
        return own_generators(0) if self.draws_always else nullcontext()

    def _with_own_measures(self, names: list[str], objective: bool) -> list[str]:
        """The names of what `evaluate` measures, from those that every task has."""
        return names

    def client_losses(self, x: Tensor, buffers: Tensor | None = None) -> Tensor:
        """f_i(x) of every client, to see which clients are served badly."""
        with torch.no_grad(), self._evaluating():
            return client_losses(self, x, buffers)


def _own_test(
    given: Split | Sequence[ArrayLike] | None, clients: int, test: tuple[Tensor, ...] | None
) -> Split | None:
    """The test samples of every client, checked."""
    if given is None:
        return None
    if test is None:
        raise FairleadError("test_clients is given without test data: give test as well")
    split = given if isinstance(given, Split) else Split.of(given)
    check_test_split(split, clients, len(test[0]))
    return split
