"""Conformal prediction: sets of labels that contain the true one with a chosen probability.

κ: the share of errors allowed     s(x, l): the score of label l, small if it fits     n: calibration samples
q̂: the ⌈(n + 1)(1 − κ)⌉-th smallest score of the true labels, ∞ beyond n     C(x) = {l : s(x, l) ≤ q̂}
π_(1) ≥ π_(2) ≥ …: the sorted probabilities; o: the rank of l; ρ = Σ_{j<o} π_(j); u uniform in [0, 1]
threshold: s = 1 − π_l     APS: s = ρ + u·π_l     RAPS: s = ρ + u·π_l + λ·max(0, o − k_reg); u = 1 without randomization
(Angelopoulos, Bates, Jordan and Malik 2021; Li et al. 2023, appendix C, use the threshold)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.errors import FairleadError, unknown
from fairlead.figures.style import look, panels
from fairlead.run.train import Run
from fairlead.task.losses import LOSSES
from fairlead.task.samples import load, output_of
from fairlead.task.task import Task

Kind = Literal["threshold", "aps", "raps"]
KAPPAS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Conformal:
    """How labels are scored.

    randomized: draw u, which makes APS and RAPS sets smaller and their coverage exact.
    penalty, k_reg: λ and k_reg of RAPS; the defaults are for about ten classes.
    """

    kind: Kind = "threshold"
    randomized: bool = False
    penalty: float = 0.1
    k_reg: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise unknown("kind of prediction set", str(self.kind), get_args(Kind))
        if self.penalty < 0 or self.k_reg < 0:
            raise FairleadError(
                f"penalty is {self.penalty} and k_reg {self.k_reg}: both must be at least 0"
            )

    def scores(self, p: Tensor, u: Tensor | None = None) -> Tensor:
        """The scores of every label (n, C) from probabilities (n, C). u: one number per sample, if randomized.

        >>> p = torch.tensor([[0.5, 0.3, 0.2]])
        >>> Conformal("threshold").scores(p), Conformal("aps").scores(p)
        (tensor([[0.5000, 0.7000, 0.8000]]), tensor([[0.5000, 0.8000, 1.0000]]))
        """
        if self.kind == "threshold":
            return 1 - p
        ordered, order = p.sort(dim=1, descending=True, stable=True)
        share = torch.ones_like(p[:, :1]) if u is None else u[:, None].to(p)
        scores = ordered.cumsum(1) - ordered + share * ordered
        if self.kind == "raps":
            rank = torch.arange(1, p.shape[1] + 1, device=p.device, dtype=p.dtype)
            scores = scores + self.penalty * (rank - self.k_reg).clamp(min=0)
        return torch.empty_like(scores).scatter_(1, order, scores)


def quantile(scores: Tensor, kappa: float) -> float:
    """q̂ from the scores of the true labels.

    >>> quantile(torch.tensor([0.3, 0.1, 0.2]), 0.25), quantile(torch.tensor([0.3, 0.1, 0.2]), 0.1)
    (0.30000001192092896, inf)
    """
    if not 0 < kappa < 1:
        raise FairleadError(f"kappa is {kappa}: must be in (0, 1)")
    return _of_sorted(scores.sort().values, kappa)


def _of_sorted(scores: Tensor, kappa: float) -> float:
    place = math.ceil((len(scores) + 1) * (1 - kappa) - 1e-9)
    return math.inf if place > len(scores) else float(scores[place - 1])


@dataclass(frozen=True)
class Coverage:
    """How prediction sets did on test data, for every κ.

    by_client, by_class: coverage (K, N) and (K, C), NaN where there is no sample.
    """

    kind: Kind
    kappas: Floats
    coverage: Floats
    """The share of samples whose set has the true label."""
    size: Floats
    """The mean number of labels in a set."""
    empty: Floats
    """The share of empty sets."""
    by_client: Floats = field(repr=False)
    by_class: Floats = field(repr=False)
    accuracy: float
    """Of the most probable label alone."""
    calibration: int
    """Calibration samples."""
    test: int
    """Test samples."""
    notes: tuple[str, ...] = ()

    def smallest_size(self, level: float) -> float | None:
        """The smallest mean size of a set at which coverage reaches a level, such as the accuracy of centralized
        training (Li et al. 2023, Figure 3); None if it never does."""
        good = self.size[self.coverage >= level]
        return float(good.min()) if len(good) else None

    def at(self, kappa: float) -> dict[str, float]:
        """The numbers for one κ."""
        k = int(np.abs(self.kappas - kappa).argmin())
        if not math.isclose(self.kappas[k], kappa):
            raise FairleadError(f"kappa {kappa} was not computed: pass it in kappas=[…]")
        rows = self.by_client[k]
        spread = (np.nan, np.nan) if np.isnan(rows).all() else (np.nanmin(rows), np.nanmax(rows))
        return {
            "coverage": float(self.coverage[k]), "size": float(self.size[k]), "empty": float(self.empty[k]),
            "lowest_client": float(spread[0]), "highest_client": float(spread[1]),
        }  # fmt: skip


def conformal(
    of: Task | Run,
    x: Tensor | None = None,
    kind: Kind | Conformal = "threshold",
    kappas: Sequence[float] = KAPPAS,
    *,
    buffers: Tensor | None = None,
    seed: int = 0,
) -> Coverage:
    """Prediction sets of a classifier: calibrated on the task's validation data, or else on half of its test data, and
    judged on the (other) test data.

    Exchangeable calibration and test samples have a coverage of at least 1 − κ. A single client's samples are not
    exchangeable with those of all, so its coverage may be anything: with validation data it is that of the client's own
    validation samples, calibrated on the others' (without, that of the classes, mixed as in the client's data).

    >>> import fairlead as fl
    >>> task = fl.tasks.digits(clients=5, valid=0.2)
    >>> run = fl.train(task, fl.FedAvg(lr=1.0), rounds=10, epochs=1, batch_size=20)
    >>> found = fl.measure.conformal(run, kind="aps", kappas=[0.1])
    >>> bool(found.coverage[0] > 0.85)
    True
    """
    if isinstance(of, Run):
        x, buffers = (of.x if x is None else x), of.session.buffers
    task = of.task if isinstance(of, Run) else of
    point = task.start(seed)[0] if x is None else task.cast(x)
    how = kind if isinstance(kind, Conformal) else Conformal(kind)
    if task.test is None:
        raise FairleadError("conformal prediction is judged on test data: give the task some")
    notes: list[str] = []
    p, y = probabilities(task, point, task.test, buffers)
    if task.valid is not None:
        held_p, held_y = probabilities(task, point, task.valid, buffers)
        owners = task.valid_owners
    else:
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y))).to(y.device)
        half = len(y) // 2
        (held_p, held_y), owners = (p[order[:half]], y[order[:half]]), None
        p, y = p[order[half:]], y[order[half:]]
        notes.append(
            "calibrated on half of the test data, judged on the other half: set valid=… for all of it"
        )
    draw = np.random.default_rng([seed, 1])
    held = how.scores(held_p, _uniform(how, held_p, draw))
    scores = how.scores(p, _uniform(how, p, draw))
    true = held.gather(1, held_y[:, None])[:, 0]
    rows = [_judged(scores, y, quantile(true, kappa)) for kappa in kappas]
    inside = torch.stack([row[0] for row in rows])
    classes = torch.stack([_grouped(hit, y, p.shape[1]) for hit in inside])
    if owners is not None:
        clients = _left_out(
            held, held_y, torch.from_numpy(owners).to(y.device), task.clients, kappas
        )
    else:
        clients = _mixed(classes, task)
        notes.append("per client: the classes' coverage, mixed as in the client's data")
    return Coverage(
        how.kind, np.array(kappas, float), inside.double().mean(1).cpu().numpy(),
        np.array([row[1] for row in rows]), np.array([row[2] for row in rows]), clients.cpu().numpy(),
        classes.cpu().numpy(), float((p.argmax(1) == y).double().mean()), len(held_y), len(y), tuple(notes),
    )  # fmt: skip


def probabilities(
    task: Task, x: Tensor, data: tuple[Tensor, ...], buffers: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The model's probabilities (n, C) in float64 and the labels (n,) on some data."""
    named, parts = task.state_dict(x, buffers), []
    labels = data[-1]
    signs = task.loss is LOSSES["logistic"]
    if (
        task.arrangement.inputs != 0
        or len(data) != 2
        or labels.dim() != 1
        or (labels.is_floating_point() and not signs)
    ):
        raise FairleadError("conformal prediction is for classifiers: the task has no labels")
    with torch.no_grad():
        for rows in torch.arange(len(labels), device=labels.device).split(4096):
            output = output_of(task, task.evaluation_model, named, load(task, data, rows))
            output = output.to(torch.float64)
            if signs:
                score = output.reshape(len(rows))
                output = torch.stack([torch.zeros_like(score), score], 1)
            parts.append(output.softmax(1))
    return torch.cat(parts), ((labels + 1) / 2 if signs else labels).long()


def _uniform(how: Conformal, p: Tensor, draw: np.random.Generator) -> Tensor | None:
    if not how.randomized or how.kind == "threshold":
        return None
    return torch.from_numpy(draw.random(len(p))).to(p)


def _judged(scores: Tensor, y: Tensor, q: float) -> tuple[Tensor, float, float]:
    """Which samples are covered, the mean size of their sets and the share of empty ones."""
    chosen = scores <= q
    size = chosen.sum(1).double()
    return (
        chosen.gather(1, y[:, None])[:, 0],
        float(size.mean()),
        float((size == 0).double().mean()),
    )


def _grouped(hit: Tensor, group: Tensor, count: int) -> Tensor:
    """The mean of `hit` in each group; NaN in empty ones."""
    total = torch.zeros(count, dtype=torch.float64, device=hit.device)
    size = total.index_add(0, group, torch.ones_like(hit, dtype=torch.float64))
    return total.index_add(0, group, hit.double()) / size


def _left_out(
    scores: Tensor, y: Tensor, owners: Tensor, clients: int, kappas: Sequence[float]
) -> Tensor:
    """The coverage of every client's calibration samples with sets calibrated on the other clients' (K, N)."""
    true, order = scores.gather(1, y[:, None])[:, 0].sort()
    owners = owners[order]
    found = torch.full((len(kappas), clients), math.nan, dtype=torch.float64, device=y.device)
    for client in owners.unique().tolist():
        mine = owners == client
        others = true[~mine]
        for k, kappa in enumerate(kappas):
            found[k, client] = (true[mine] <= _of_sorted(others, kappa)).double().mean()
    return found


def _mixed(classes: Tensor, task: Task) -> Tensor:
    """The coverage of the classes, mixed as in every client's training data (K, N)."""
    labels = task.data[-1].to(classes.device)
    if task.loss is LOSSES["logistic"]:
        labels = (labels + 1) / 2
    owners = torch.from_numpy(task.split.owners).to(classes.device)
    drawn = labels[torch.from_numpy(task.split.order).to(labels.device)].long()
    counts = torch.zeros(task.clients, classes.shape[1], dtype=torch.float64, device=classes.device)
    one = torch.ones(len(drawn), dtype=torch.float64, device=classes.device)
    seen = counts.index_put_((owners, drawn), one, accumulate=True)
    seen = seen * ~classes[0].isnan()
    return classes.nan_to_num() @ (seen / seen.sum(1, keepdim=True)).T


def plot_coverage(
    found: Mapping[str, Coverage], path: str | Path, accuracy: float | None = None
) -> Path:
    """Coverage against mean set size, one curve per run, with the top-1 accuracy of centralized training as a line."""
    with panels(Path(path), 1, 1, share_y=False) as grid:
        axes = grid[0][0]
        for number, (label, one) in enumerate(found.items()):
            axes.plot(one.size, one.coverage, label=label, **look(number))
        if accuracy is not None:
            axes.axhline(accuracy, color="0.5", linewidth=0.8, label="centralized, top-1")
        axes.set_xlabel("mean set size")
        axes.set_ylabel("coverage")
        axes.legend()
    return Path(path)
