"""Comparisons: tuning, tables, figures."""

from __future__ import annotations

import csv
import io
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fairlead as fl

PNG = b"\x89PNG\r\n\x1a\n"


def _task() -> fl.Task:
    return fl.problems.random_quadratics(clients=4, dim=3, mu=0.5, delta=0.3, gradient=5.0)


def test_tuning_takes_the_step_size_with_the_fewest_rounds() -> None:
    target = {"distance": 1e-2}
    grid = [3.0, 0.3, 0.03]
    result = fl.compare(
        _task(), {"S": fl.Scaffold(lr=1.0)}, rounds=20, steps=4, grid=grid, target=target, seeds=2
    )
    alone = {}
    for lr in grid:
        run = fl.train(_task(), fl.Scaffold(lr=lr), rounds=20, steps=4, target=target)
        alone[lr] = run.rounds_to("distance", 1e-2) or np.inf
    best = min(alone, key=lambda lr: alone[lr])
    assert result.entries["S"].algorithm.lr == best
    assert result.entries["S"].tuning[best] == alone[best]
    assert (result.rounds_to_target("S") == alone[best]).all()
    assert len(result.entries["S"].runs) == 2


def test_without_a_target_the_best_final_metric_wins_and_divergence_loses() -> None:
    result = fl.compare(
        _task(), [fl.FedAvg(lr=1.0)], rounds=10, steps=2, grid=[1e25, 0.3, 1e-4], metric="distance"
    )
    assert result.entries["FedAvg"].algorithm.lr == 0.3


def test_tuning_scales_a_schedule() -> None:
    method = fl.FedAvg(lr=fl.schedules.Exponential(1.0, 0.9))
    result = fl.compare(_task(), {"m": method}, rounds=5, grid=[0.2, 0.1], metric="loss")
    chosen = result.entries["m"].algorithm.lr
    assert isinstance(chosen, fl.schedules.Exponential)
    assert chosen.decay == 0.9
    assert chosen.lr in (0.2, 0.1)


def test_table_and_files(tmp_path) -> None:
    methods = {"FedAvg": fl.FedAvg(lr=0.3), "SCAFFOLD": fl.Scaffold(lr=0.3)}
    result = fl.compare(
        _task(), methods, rounds=40, steps=4, seeds=[3, 4], target={"distance": 1e-4}, cohort=2
    )
    rows = result.table()
    assert [row["method"] for row in rows] == ["FedAvg", "SCAFFOLD"]
    assert rows[0]["rounds to distance ≤ 0.0001"] == "40+"
    numbers = result.rounds_to_target("SCAFFOLD")
    shown = f"{numbers.mean():.1f} ± {numbers.std():.1f}"
    assert rows[1]["rounds to distance ≤ 0.0001"] == shown
    assert list(csv.DictReader(io.StringIO(result.to_csv()))) == rows
    assert result.to_markdown().count("\n") == 4
    for x in ("round", "gradients"):
        result.plot(tmp_path / "c.png", x)
        assert (tmp_path / "c.png").read_bytes()[:8] == PNG
    figure = result.plot()
    lines = figure.axes[0].get_lines()
    np.testing.assert_allclose(
        lines[1].get_ydata(),
        np.mean([r.history["distance"] for r in result.entries["SCAFFOLD"].runs], axis=0),
    )


def test_edges_of_the_grid_are_pointed_out() -> None:
    result = fl.compare(_task(), [fl.FedAvg(lr=1.0)], rounds=3, grid=[1e-3, 1e-4], metric="loss")
    assert "0.001, an edge of the grid" in result.notes()[1]
    assert "at the centralised solution" in result.notes()[0]


def test_wrong_calls() -> None:
    with pytest.raises(fl.FairleadError, match="nothing to compare"):
        fl.compare(_task(), [], rounds=1)
    with pytest.raises(fl.FairleadError, match="exactly one target"):
        fl.compare(_task(), [fl.FedAvg(lr=1.0)], rounds=1, target={"loss": 1.0, "gap": 1.0})
    with pytest.raises(fl.FairleadError, match="no target"):
        fl.compare(_task(), [fl.FedAvg(lr=0.1)], rounds=1).rounds_to_target("FedAvg")
    unmeasured = fl.Task(nn.Linear(2, 1), "squared", (torch.ones(4, 2), torch.ones(4)), [range(4)])
    with pytest.raises(fl.FairleadError, match="nothing is measured"):
        fl.compare(unmeasured, [fl.FedAvg(lr=0.1)], rounds=1, objective=False)


def test_callbacks_are_told_of_one_run_after_another() -> None:
    class Heard(fl.Callback):
        rounds: ClassVar[list[float]] = []

        def row(self, row) -> None:
            self.rounds.append(row["round"])

    work: Any = {"rounds": 2, "seeds": 2, "callbacks": [Heard()]}
    fl.compare(_task(), [fl.FedAvg(lr=0.1)], **work)
    assert Heard.rounds == [0, 1, 2, 0, 1, 2]
    with pytest.raises(fl.FairleadError, match="callbacks is only for single runs"):
        fl.compare(_task(), [fl.FedAvg(lr=0.1)], together=True, **work)


def test_methods_of_one_class_are_numbered_and_functions_are_step_sizes() -> None:
    methods = [fl.Scaffold(lr=0.1), fl.Scaffold(lr=0.1, option="I"), fl.FedAvg(lr=lambda k: 0.1)]
    result = fl.compare(_task(), methods, rounds=2)
    assert list(result.entries) == ["Scaffold", "Scaffold 2", "FedAvg"]
    assert result.table()[2]["lr"] == "0.1"


def test_tuning_over_seeds_without_a_target() -> None:
    result = fl.compare(_task(), [fl.FedAvg(lr=1.0)], rounds=3, grid=[0.3, 0.1], seeds=2)
    assert result.entries["FedAvg"].algorithm.lr in (0.3, 0.1)
    with pytest.raises(fl.FairleadError, match="no metric 'los'"):
        fl.compare(_task(), [fl.FedAvg(lr=1.0)], rounds=3, metric="los")


def test_own_metrics_say_which_way_is_better() -> None:
    x, y = torch.randn(20, 3), torch.randint(3, (20,))
    top2 = fl.Metric(
        lambda o, t: (o.topk(2).indices == t[:, None]).any(1).to(o.dtype), better="higher"
    )
    task = fl.Task(
        torch.nn.Linear(3, 3),
        "cross_entropy",
        (x, y),
        [range(9), range(9, 20)],
        test=(x, y),
        metrics={"top2": top2},
    )
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=2, target={"top2": 1.01})
    assert run.stopped == "rounds"
    assert run.history.best("top2") == run.history["top2"].max()
