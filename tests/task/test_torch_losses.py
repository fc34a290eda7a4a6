"""Torch's own losses as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fairlead as fl


def _task(loss: Any, targets: str, **more: Any) -> fl.Task:
    torch.manual_seed(0)
    x = torch.randn(30, 4)
    y = {
        "classes": torch.randint(3, (30,)),
        "numbers": torch.randn(30, 3),
        "signs": torch.randint(2, (30, 3)).float(),
    }[targets]
    split = [range(10), range(10, 30)]
    torch.manual_seed(1)
    return fl.Task(nn.Linear(4, 3), loss, (x, y), split, test=(x, y), dtype=torch.float64, **more)


LOSSES = {
    "CrossEntropyLoss": (nn.CrossEntropyLoss(), "classes"),
    "cross_entropy": (F.cross_entropy, "classes"),
    "weighted": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])), "classes"),
    "summed": (nn.CrossEntropyLoss(reduction="sum"), "classes"),
    "MSELoss": (nn.MSELoss(), "numbers"),
    "mse_loss": (F.mse_loss, "numbers"),
    "HuberLoss": (nn.HuberLoss(delta=0.5), "numbers"),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), "signs"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_it_is_the_mean_that_torch_computes(name: str) -> None:
    loss, targets = LOSSES[name]
    task = _task(loss, targets)
    x, _ = task.start(0)
    model = nn.Linear(4, 3).double()
    model.load_state_dict(task.state_dict(x))
    inputs, y = (t.double() if t.is_floating_point() else t for t in task.data)
    plain: Any = loss.double() if isinstance(loss, nn.Module) else loss
    weights = [1 / 20] * 10 + [1 / 40] * 20  # clients count alike, whatever their size
    if name == "weighted":
        each = F.cross_entropy(model(inputs), y, plain.weight, reduction="none")
    else:
        each = torch.stack([plain(model(a[None]), b[None]) for a, b in zip(inputs, y, strict=True)])
    expected = (each * torch.tensor(weights, dtype=torch.float64)).sum()
    torch.testing.assert_close(task.objective(x), expected.detach())


@pytest.mark.parametrize("name", LOSSES)
def test_engines_agree(name: str) -> None:
    task = _task(*LOSSES[name])
    runs = [
        fl.train(task, fl.Scaffold(lr=0.1), rounds=3, steps=2, batch_size=4, engine=engine)
        for engine in ("vmap", "loop", "debug")
    ]
    for run in runs[1:]:
        torch.testing.assert_close(run.x, runs[0].x, rtol=0, atol=1e-12)


def test_cross_entropy_brings_its_accuracy_and_checks_labels() -> None:
    assert list(_task(nn.CrossEntropyLoss(), "classes").metrics) == ["accuracy"]
    with pytest.raises(fl.FairleadError, match="label"):
        fl.Task(
            nn.Linear(2, 2),
            F.cross_entropy,
            (torch.randn(4, 2), torch.tensor([0, 1, 2, 1])),
            [range(4)],
        )


def test_other_functions_must_still_return_one_value_per_sample() -> None:
    with pytest.raises(fl.FairleadError, match="one value per sample"):
        _task(lambda output, target: (output - target).square().mean(), "numbers")
