"""Which way metrics are better, and validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fairlead as fl
from fairlead.task.evaluation import directions, evaluate_many, recorded

GEN = torch.Generator().manual_seed(0)
X = torch.randn(80, 4, generator=GEN)
Y = X @ torch.tensor([1.0, -2.0, 3.0, 0.5]) + 10
CLIENTS = [range(30), range(30, 75), range(75, 80)]


def absolute(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output[:, 0] - target).abs()


MAE = fl.Metric(absolute, better="lower")


def regression(**settings: Any) -> fl.Task:
    settings = {"test": (X + 0.1, Y), "metrics": {"mae": MAE}, **settings}
    model = torch.nn.Linear(4, 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return fl.Task(model, "squared", (X, Y), CLIENTS, **settings)


def classes(**settings: Any) -> fl.Task:
    y = (Y > 10).long()
    return fl.Task(torch.nn.Linear(4, 2), "cross_entropy", (X, y), CLIENTS, **settings)


def test_a_metric_without_a_direction_is_refused_before_training() -> None:
    with pytest.raises(fl.FairleadError, match=r"metric 'mae' .*: give fl\.Metric\(…, better="):
        regression(metrics={"mae": absolute})
    with pytest.raises(fl.FairleadError, match=r"'mae' .*: give fl\.Whole\(…, better="):
        regression(metrics={"mae": fl.Whole(lambda o, t: absolute(o, t).mean())})
    with pytest.raises(fl.FairleadError, match="'mae'"):
        regression().replace(metrics={"mae": absolute})
    for wrapper in (fl.Metric, fl.Whole):
        with pytest.raises(fl.FairleadError, match="no direction 'down'"):
            wrapper(absolute, better="down")  # type: ignore[arg-type]


def test_known_names_and_functions_need_no_direction() -> None:
    same = {"accuracy": lambda o, t: fl.losses.correct(o, t), "top1": fl.losses.correct}
    found = directions(classes(metrics=same))
    assert found["accuracy"] == found["top1"] == found["valid_top1"] == "higher"
    assert found["loss"] == found["valid_loss"] == found["gap"] == "lower"
    whole = fl.Whole(lambda o, t: absolute(o, t).max(), better="lower")
    assert directions(regression(metrics={"worst": whole}))["worst"] == "lower"
    saddle = fl.problems.auc_maximization(
        fl.Task(torch.nn.Linear(4, 1), "logistic", (X, 2.0 * (Y > 10) - 1), CLIENTS, test=(X, 2.0 * (Y > 10) - 1))
    )  # fmt: skip
    assert directions(saddle)["auc"] == "higher"
    # what a metric says counts more than its name
    assert directions(regression(metrics={"accuracy": MAE}))["accuracy"] == "lower"


def test_a_target_is_reached_from_the_right_side() -> None:
    run = fl.train(regression(), fl.FedAvg(lr=0.1), rounds=60, steps=3, target={"mae": 1.0})
    mae = run.history["mae"]
    assert run.stopped == "target"
    assert mae[0] > 5
    assert run.rounds == np.argmax(mae <= 1.0) == run.rounds_to("mae", 1.0)
    assert run.history.best("mae") == mae.min()
    assert run.history.best("mae", better="higher") == mae.max()
    with pytest.raises(fl.FairleadError, match=r"which way 'seconds' is better: pass better="):
        run.history.best("seconds")
    assert run.history.best("seconds", better="lower") == 0 or run.history["seconds"][0] > 0


def test_directions_are_found_in_folders_and_after_resuming(tmp_path: Path) -> None:
    work: dict[str, Any] = {"steps": 3, "out": tmp_path / "a"}
    fl.train(regression(), fl.FedAvg(lr=0.1), rounds=4, **work)
    run = fl.train(regression(), fl.FedAvg(lr=0.1), rounds=8, resume=tmp_path / "a", **work)
    assert run.history.best("mae") == run.history["mae"].min()
    stored = fl.runs.read(tmp_path / "a")
    assert stored.about["better"] == {"loss": "lower", "test_loss": "lower", "mae": "lower"}
    assert stored.history.best("mae") == run.history.best("mae")
    assert stored.history.first_reach("mae", 5.0) == run.rounds_to("mae", 5.0)


def test_validation_data_are_not_trained_on() -> None:
    task = regression(valid=0.1)
    assert task.valid is not None
    np.testing.assert_array_equal(task.sizes, [27, 41, 5])  # of 30, 45 and 5
    assert len(task.valid[0]) == 7
    held = {tuple(row) for row in task.valid[0].tolist()}
    assert not held & {tuple(row) for row in X[task.split.order].tolist()}
    assert held <= {tuple(row) for row in X.tolist()}
    assert regression(valid=0.1, valid_seed=1).fingerprint() != task.fingerprint()
    assert regression(valid=0.1).fingerprint() == task.fingerprint()
    assert regression().valid is None


def test_validation_columns_are_means_over_the_held_out_samples() -> None:
    task = regression(valid=0.1, l2=0.1)
    x = torch.randn(task.dim, generator=torch.Generator().manual_seed(1))
    found = task.evaluate(x)
    assert task.valid is not None
    output = task.valid[0] @ x[:4] + x[4]
    error = output - task.valid[1]
    assert found["valid_mae"] == pytest.approx(float(error.abs().mean()), rel=1e-5)
    assert found["valid_loss"] == pytest.approx(float(error.square().mean() / 2), rel=1e-5)
    assert list(found) == ["loss", "test_loss", "mae", "valid_loss", "valid_mae"]
    assert recorded(task, "uniform", True) == list(found)
    alone = regression(valid=0.1, test=None).evaluate(x)
    assert set(alone) == {"loss", "valid_loss", "valid_mae"}
    double = task.to(dtype=torch.float64).evaluate(x.double())
    assert double["valid_mae"] == pytest.approx(found["valid_mae"], rel=1e-5)


@pytest.mark.parametrize("metrics", [None, {"hit": fl.Metric(fl.losses.correct, better="higher")}])
def test_many_points_are_evaluated_as_single_ones(metrics: Any) -> None:
    task = classes(valid=0.2, metrics=metrics, test=(X, (Y > 10).long()))
    x = torch.randn(3, task.dim, generator=torch.Generator().manual_seed(1))
    many = evaluate_many(task, x, torch.zeros(3, 0), "uniform", True)
    for at, found in zip(x, many, strict=True):
        assert found == pytest.approx(task.evaluate(at), rel=1e-5)


def test_a_share_of_what_is_left_after_the_test_data() -> None:
    y = (Y > 10).long().numpy()
    client = np.repeat([0, 1], 40)
    task = fl.Task.from_arrays(X.numpy(), y, client=client, hold_out=0.25, valid=0.1)
    assert task.valid is not None
    assert task.test is not None
    assert (list(task.sizes), len(task.test[0]), len(task.valid[0])) == ([27, 27], 20, 6)
    parts = [task.data[0][task.split.order], task.test[0], task.valid[0]]
    assert len(torch.cat(parts).unique(dim=0)) == 80


def test_mapped_data_give_validation_data(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    task = fl.Task(torch.nn.Linear(4, 1), "squared", (mapped, Y.numpy()), CLIENTS, valid=0.1)
    same = regression(valid=0.1)
    assert task.mapped
    assert task.valid is not None
    assert same.valid is not None
    assert torch.equal(task.valid[0], same.valid[0])


def test_saddle_tasks_are_judged_on_validation_data() -> None:
    labels = 2.0 * (Y > 10) - 1
    inner = fl.Task(
        torch.nn.Linear(4, 1), "logistic", (X, labels), CLIENTS, test=(X, labels), valid=0.2
    )
    task = fl.problems.auc_maximization(inner)
    run = fl.train(task, fl.ScaffoldS(lr=0.01), rounds=2, steps=2)
    assert {"auc", "valid_auc", "valid_loss"} <= set(run.history)
    np.testing.assert_array_equal(task.sizes, inner.sizes)
    with pytest.raises(fl.FairleadError, match="give valid to its judge"):
        fl.SaddleTask.of(lambda x, y, a: (a * x * y).sum(), [X], X[0, :1], X[0, :1], valid=0.1)


def test_valid_is_refused_where_it_makes_no_sense() -> None:
    with pytest.raises(fl.FairleadError, match="valid is 2: must be in"):
        regression(valid=2)
    with pytest.raises(fl.FairleadError, match="valid changes the training data"):
        regression(valid=0.1, optimum=torch.zeros(5))


def test_several_processes_find_the_same_validation_values() -> None:
    settings: dict[str, Any] = {"rounds": 2, "steps": 2, "batch_size": 4, "progress": False}
    one = fl.train(regression(valid=0.2), fl.FedAvg(lr=0.1), workers=1, **settings)
    two = fl.train(regression(valid=0.2), fl.FedAvg(lr=0.1), workers=2, **settings)
    np.testing.assert_allclose(one.history["valid_mae"], two.history["valid_mae"], rtol=1e-5)
