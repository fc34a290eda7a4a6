"""Metrics of every client on its own test data, and what is recorded of them: mean, standard deviation, the worst
tenth and a histogram over clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from fairlead.data.own_test import following
from fairlead.data.splits import Split
from fairlead.errors import FairleadError, needed
from fairlead.task import losses
from fairlead.task.evaluation import Spread, judge_of
from fairlead.task.metrics import Better, Metric, Whole, direction
from fairlead.task.samples import load, output_of

CLIENT, PERSONAL = "client_", "personal_"
"""The prefixes of columns over clients: with the server's model, and after a few local steps from it."""
BLOCK = 4096
"""Samples at a time."""
SHARES = (losses.correct, losses.correct_sign)
"""Metrics whose mean is a share, from 0 to 1."""
LABELS = 1000
"""Real-valued targets with at most so many distinct values count as labels."""


@dataclass(frozen=True)
class PerClient:
    """What `train(per_client=…)` records of single clients at every evaluation.

    steps: how many local steps each client takes from the server's model before it is tested again, as its
        personalised model; 0 for none. They are plain gradient steps and leave no trace in the run.
    lr: their step size, by default the method's first one. batch_size: their samples, as in `train`; every
        evaluation uses the same.
    bins: how many bins the histograms have.

    >>> import fairlead as fl
    >>> task = fl.tasks.digits(clients=3)
    >>> run = fl.train(task, fl.FedAvg(lr=1.0), rounds=1, batch_size=0.2, per_client=PerClient(steps=5))
    >>> [name for name in run.history.rows[-1] if "accuracy_mean" in name]
    ['client_accuracy_mean', 'personal_accuracy_mean']
    """

    steps: int = 0
    lr: float | None = None
    batch_size: int | float | None = 32
    bins: int = 10

    def __post_init__(self) -> None:
        if not (isinstance(self.steps, int) and self.steps >= 0) or self.bins < 1:
            raise FairleadError(
                f"steps is {self.steps} and bins is {self.bins}: give at least 0 steps and 1 bin"
            )
        if self.lr is not None and not self.lr > 0:
            raise FairleadError(f"lr is {self.lr}: must be positive")

    @classmethod
    def of(cls, given: bool | PerClient | None) -> PerClient | None:
        """From the argument of `train`."""
        return given if isinstance(given, PerClient) else cls() if given else None


@dataclass(frozen=True, eq=False)
class ClientMetrics:
    """The metrics of every client.

    values: one array per metric, with NaN for clients without test data. samples: test samples per client.

    >>> one = ClientMetrics({"client_accuracy": np.array([1.0, 0.5, np.nan])}, np.array([4, 2, 0]),
    ...     {"client_accuracy": "higher"}, frozenset({"client_accuracy"}))
    >>> one.summary(bins=2)["client_accuracy_mean"], one.summary(bins=2)["client_accuracy_worst"]
    (0.75, 0.5)
    """

    values: dict[str, NDArray[np.float64]]
    samples: NDArray[np.int64]
    better: Mapping[str, Better]
    shares: frozenset[str]
    """Those that lie between 0 and 1."""

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return self.values[name]

    def summary(self, bins: int = 10) -> dict[str, float]:
        """Mean, standard deviation, worst tenth (its mean) and histogram over the clients with test data; the bins
        are equally wide, from `low` to `high`."""
        found: dict[str, float] = {}
        tested = self.samples > 0
        for name, column in self.values.items():
            v = column[tested]
            ranked = np.sort(v)[:: 1 if self.better[name] == "higher" else -1]
            worst = ranked[: -(-len(v) // 10)].mean() if np.isfinite(v).all() else np.nan
            sound = v[np.isfinite(v)]
            ends = (0.0, 1.0) if name in self.shares else _ends(sound)
            counts = np.histogram(sound, bins, ends)[0] if len(sound) else np.zeros(bins, int)
            found |= {
                f"{name}_mean": float(v.mean()), f"{name}_std": float(v.std()),
                f"{name}_worst": float(worst),
                f"{name}_low": ends[0], f"{name}_high": ends[1],
                **{f"{name}_bin/{k}": int(count) for k, count in enumerate(counts)},
            }  # fmt: skip
        return found

    def to_pandas(self) -> Any:
        """One row per client."""
        return needed("pandas").DataFrame({"samples": self.samples, **self.values})


def is_histogram(column: str) -> bool:
    """Whether a column is part of a histogram over clients.

    >>> is_histogram("client_accuracy_bin/3"), is_histogram("client_accuracy_worst")
    (True, False)
    """
    ends = column.endswith(("_low", "_high")) or "_bin/" in column
    return ends and column.startswith((CLIENT, PERSONAL))


def histograms(row: Mapping[str, float]) -> dict[str, tuple[float, float, list[float]]]:
    """The histograms in a row of a history, by metric: the ends and the number of clients in every bin.

    >>> histograms({"client_auc_low": 0, "client_auc_high": 1, "client_auc_bin/0": 2, "client_auc_bin/1": 5})
    {'client_auc': (0, 1, [2, 5])}
    """
    names = [c.removesuffix("_low") for c in row if is_histogram(c) and c.endswith("_low")]
    return {
        name: (
            row[f"{name}_low"], row[f"{name}_high"],
            [v for c, v in row.items() if c.startswith(f"{name}_bin/")],
        )
        for name in names
    }  # fmt: skip


def in_a_line(low: float, high: float, counts: Sequence[float]) -> str:
    """A histogram in one line.

    >>> in_a_line(0.0, 1.0, [0, 1, 4, 8])
    '0 ▁▂▅█ 1'
    """
    top = max([*counts, 1])
    bars = "".join("▁▂▃▄▅▆▇█"[round(7 * count / top)] for count in counts)
    return f"{low:.3g} {bars} {high:.3g}"


def _ends(v: NDArray[np.float64]) -> tuple[float, float]:
    if not len(v):
        return np.nan, np.nan
    low, high = float(v.min()), float(v.max())
    alike = high - low <= 1e-9 * max(1.0, abs(low))  # up to rounding
    return (low, low + 1) if alike else (low, high)


def split_of_test(task: Any) -> Split:
    """The test samples of every client: those the task was given, or else a share of the test data with the labels
    that the client trains on; all of them if there is one client."""
    if task.test_clients is not None:
        return task.test_clients
    if task.clients == 1:
        count = len(task.test[0])
        return Split(np.arange(count), np.array([0, count]))
    if "split_of_test" not in task.memo:
        mine, theirs = task.data[-1], task.test[-1]
        few = mine.dim() == 1 and (not mine.is_floating_point() or len(mine.unique()) <= LABELS)
        if not few or len(task.data) <= task.arrangement.count:
            raise FairleadError(
                "the targets are no labels, so nothing says which client a test sample belongs to: give the task "
                "test_clients, one list of test samples per client"
            )
        labels = (t.cpu().numpy() for t in (mine, theirs))
        task.memo["split_of_test"] = following(task.split, *labels)
    return task.memo["split_of_test"]


def check_per_client(task: Any, setting: PerClient, lr: Any) -> None:
    """Raise an error if there is nothing to measure clients on, or no step size."""
    judge = judge_of(task)
    if judge.test is None:
        raise FairleadError("per_client needs test data: give the task test=…, or hold_out=0.2")
    split_of_test(judge)
    if setting.steps and task.flip is not None:
        raise FairleadError("a saddle task has no personalised models: use PerClient(steps=0)")
    if setting.steps and setting.lr is None and lr is None:
        raise FairleadError("the method has no step size of its own: give PerClient(lr=…)")


def per_sample(task: Any) -> dict[str, Any]:
    """The loss and the metrics with a value per sample, by name; `Whole` ones have none for a client."""
    kept = {name: m for name, m in task.metrics.items() if not isinstance(m, Whole)}
    return {"test_loss": task.loss, **kept}


def tests_of(task: Any) -> tuple[str, ...]:
    """What a client can measure on test data of its own, by name; nothing in a saddle task."""
    return () if task.flip is not None else tuple(per_sample(task))


def columns(task: Any, setting: PerClient | None) -> dict[str, Better]:
    """The columns over clients that a run records, and which way each is better."""
    if setting is None:
        return {}
    found: dict[str, Better] = {}
    for prefix in (CLIENT, PERSONAL)[: 1 + (setting.steps > 0)]:
        for name, way in _directions(judge_of(task)).items():
            found |= {f"{prefix}{name}_mean": way, f"{prefix}{name}_std": "lower"}
            found[f"{prefix}{name}_worst"] = way
    return found


def _directions(task: Any) -> dict[str, Better]:
    measures = per_sample(task)
    return {n: "lower" if n == "test_loss" else direction(n, m) for n, m in measures.items()}


def gathered(task: Any, sums: Mapping[str, Tensor]) -> ClientMetrics:
    """Means from the sums (measures, clients) over every client's samples, by prefix."""
    samples = split_of_test(task).sizes
    plain = {n: m.of if isinstance(m, Metric) else m for n, m in per_sample(task).items()}
    count = np.where(samples > 0, samples, np.nan)
    values = {
        prefix + name: row / count
        for prefix, total in sums.items()
        for name, row in zip(plain, total.double().cpu().numpy(), strict=True)
    }
    ways: dict[str, Better] = {p + n: way for p in sums for n, way in _directions(task).items()}
    shares = {p + n for p in sums for n, m in plain.items() if m in SHARES}
    return ClientMetrics(values, samples, ways, frozenset(shares))


def client_sums(
    task: Any, x: Tensor, buffers: Tensor | None, spread: Spread | None = None
) -> Tensor:
    """Sums of the loss and the metrics over every client's test samples with one model, in one pass over them:
    (measures, clients)."""
    rows, owner = _placed(task)
    named = task.state_dict(x, buffers)
    measures = per_sample(task)
    total = x.new_zeros(len(measures), task.clients)
    if spread is not None:
        mine = spread.part(len(rows), False).to(rows.device)
        rows, owner = rows[mine], owner[mine]
    for part, who in zip(rows.split(BLOCK), owner.split(BLOCK), strict=True):
        if len(part):
            batch = load(task, task.test, part)
            output = output_of(task, task.evaluation_model, named, batch)
            total.index_add_(1, who, _measured(task, output, batch))
    return total if spread is None else spread.ranks.sum_(total)


def personal_sums(task: Any, clients: NDArray[np.int64], x: Tensor, buffers: Tensor) -> Tensor:
    """Sums over the test samples of S clients, each with its own model: x is (S, d); (measures, S)."""
    split, place = split_of_test(task), torch.from_numpy(clients).to(task.device)
    order, _ = _placed(task)
    first = torch.from_numpy(split.offsets[:-1]).to(task.device)[place][:, None]
    size = torch.from_numpy(split.sizes).to(task.device)[place][:, None]
    widest, count = int(split.sizes[clients].max()), len(clients)
    total = x.new_zeros(len(per_sample(task)), count)
    for index in torch.arange(widest, device=task.device).split(max(1, BLOCK // count)):
        inside = index < size
        rows = order[torch.where(inside, first + index, first)]
        flat = load(task, task.test, rows.reshape(-1))
        blocks = [t.unflatten(0, rows.shape) for t in flat]
        output = tree_map(lambda t: t.flatten(0, 1), _outputs(task, x, buffers, blocks))
        found = _measured(task, output, flat).unflatten(1, rows.shape)
        total += torch.where(inside, found, 0.0).sum(2)
    return total


def _outputs(task: Any, x: Tensor, buffers: Tensor, blocks: list[Tensor]) -> Any:
    """The outputs of S models on S blocks of samples (S, B, …)."""

    def one(x: Tensor, own: Tensor, *block: Tensor) -> Any:
        return output_of(task, task.evaluation_model, task.state_dict(x, own), block)

    if len(x) == 1:  # also for models that vmap refuses
        found = one(x[0], buffers[0], *(t[0] for t in blocks))
        return tree_map(lambda t: t[None], found)
    return vmap(one, randomness="different")(x, buffers, *blocks)


def _measured(task: Any, output: Any, block: Sequence[Tensor]) -> Tensor:
    """The loss and the metrics of single samples: (measures, B)."""
    targets = task.arrangement.of_loss(block)
    found = [measure(output, *targets) for measure in per_sample(task).values()]
    return torch.stack([values.to(task.dtype) for values in found])


def _placed(task: Any) -> tuple[Tensor, Tensor]:
    """The test samples in the order of clients, and the client of each, on the device."""
    if "test_rows" not in task.memo:
        split = split_of_test(task)
        pair = (torch.from_numpy(t).to(task.device) for t in (split.order, split.owners))
        task.memo["test_rows"] = tuple(pair)
    return task.memo["test_rows"]
