"""Step sizes are chosen by the metric's direction, and on validation data where there are any."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fairlead as fl

GEN = torch.Generator().manual_seed(0)
X = torch.randn(120, 4, generator=GEN)
W = torch.tensor([1.0, -2.0, 3.0, 0.5])
CLIENTS = [range(60), range(60, 120)]
WORK: dict[str, Any] = {"rounds": 6, "steps": 3, "batch_size": 10, "progress": False}
GRID = [0.3, 0.1, 0.001]
SLOW = 0.001
"""The best step size if the test data are those of the start."""


def regression(test: torch.Tensor, **settings: Any) -> fl.Task:
    """Targets of the test data may contradict the training data's."""
    mae = fl.Metric(lambda o, t: (o[:, 0] - t).abs(), better="lower")
    model = torch.nn.Linear(4, 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return fl.Task(
        model, "squared", (X, X @ W + 10), CLIENTS, test=(X, test), metrics={"mae": mae}, **settings
    )


def lr_of(task: fl.Task, how: str, **more: Any) -> float:
    settings = {**WORK, "metric": "mae", **more}
    if how == "tune":
        return float(fl.tune(task, fl.FedAvg(lr=1.0), lr=GRID, **settings).best("FedAvg").lr)  # type: ignore[attr-defined]
    result = fl.compare(task, [fl.FedAvg(lr=1.0)], grid=GRID, together=how == "at once", **settings)
    return float(result.entries["FedAvg"].algorithm.lr)  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["at once", "one by one", "tune"])
def test_the_metric_and_the_data_decide(how: str) -> None:
    fit = X @ W + 10
    assert lr_of(regression(fit), how) != SLOW
    assert lr_of(regression(fit), how, metric=None, target={"mae": 3.0}) != SLOW
    start = torch.zeros(len(X))  # the model of round 0 is perfect
    assert lr_of(regression(start), how) == SLOW
    assert lr_of(regression(start, valid=0.1), how) != SLOW
    goal = {"mae": 3.0}  # reached at once by the test set, but not on validation data
    assert lr_of(regression(start, valid=0.1), how, metric=None, target=goal) != SLOW


def test_tables_say_what_they_were_tuned_on() -> None:
    settings = {**WORK, "grid": GRID}
    task, other = regression(X @ W + 10), regression(X @ W + 10, valid=0.1)
    result = fl.compare(task, [fl.FedAvg(lr=1.0)], **settings)
    assert result.metric == "mae"
    assert result.to_markdown().endswith("\n\nTuned on the test set.\n")
    assert any("tuned on the test set" in note for note in result.notes())
    assert (result.tuning()["on"], result.tuning()["better"]) == ("test", "lower")
    result = fl.compare(other, [fl.FedAvg(lr=1.0)], **settings)
    assert result.to_markdown().endswith("\n\nTuned on validation data.\n")
    assert any("chosen by valid_mae" in note for note in result.notes())
    assert list(result.table()[0])[2:4] == ["best mae", "final mae"]  # on the test set
    told = result.tuning()
    assert (told["metric"], told["reported"], told["on"]) == ("valid_mae", "mae", "valid")
    alone = fl.compare(task, [fl.FedAvg(lr=0.1)], **WORK)
    assert "Tuned" not in alone.to_markdown()
    assert not alone.notes()
    loss = fl.compare(task, [fl.FedAvg(lr=1.0)], metric="loss", **settings)
    assert "Tuned" not in loss.to_markdown()


def test_a_tuning_shows_the_test_metric_of_the_best_trial_only() -> None:
    task = regression(X @ W + 10, valid=0.1)
    goal = {"mae": 3.0}
    tuning = fl.tune(task, fl.FedAvg(lr=1.0), lr=GRID, target=goal, **WORK)
    (row,) = tuning.table()
    assert "rounds to valid_mae ≤ 3" in row
    best = tuning.best("FedAvg")
    run = fl.train(task, best, target={"valid_mae": 3.0}, **WORK)
    assert float(row["test mae"]) == pytest.approx(run.history.last("mae"), rel=1e-3)
    assert float(row["final valid_mae"]) == pytest.approx(run.history.last("valid_mae"), rel=1e-3)
    assert "mae" not in tuning.to_csv()
    assert tuning.to_markdown().endswith("Tuned on validation data.\n")


def test_the_metric_that_is_compared_by_default() -> None:
    def chosen(task: fl.Task) -> tuple[str, str]:
        found = fl.compare(task, [fl.FedAvg(lr=0.1)], **{**WORK, "rounds": 1}).measured
        return found.metric, found.by

    data = (X, X @ W)

    def plain(**settings: Any) -> fl.Task:
        return fl.Task(torch.nn.Linear(4, 1), "squared", data, CLIENTS, **settings)

    assert chosen(plain()) == ("loss", "loss")
    assert chosen(plain(test=data)) == ("loss", "loss")
    assert chosen(plain(test=data, valid=0.1)) == ("test_loss", "valid_loss")
    assert chosen(plain(valid=0.1)) == ("valid_loss", "valid_loss")
    assert chosen(regression(X @ W)) == ("mae", "mae")
    assert chosen(regression(X @ W, valid=0.1)) == ("mae", "valid_mae")
