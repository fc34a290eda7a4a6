"""Every client counts: its own test data, and what is recorded of its metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import shared, uneven
from torch import nn
from torch.func import functional_call
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app
from fairlead.data.own_test import following
from fairlead.task.per_client import histograms, split_of_test


def by_hand(run: fl.Run, x: torch.Tensor | None = None) -> tuple[list[float], list[float]]:
    """Loss and accuracy of every client, one after another."""
    losses, accuracies = [], []
    for client, rows in enumerate(split_of_test(run.task)):
        model = run.task.model
        at = run.x if x is None else x[client]
        inputs, labels = (t[torch.from_numpy(rows)] for t in run.task.test)
        output = functional_call(model, run.task.state_dict(at), (inputs,))
        losses.append(float(nn.functional.cross_entropy(output, labels)))
        accuracies.append(float((output.argmax(1) == labels).double().mean()))
    return losses, accuracies


def with_own_test() -> fl.Task:
    """The uneven task, whose clients are tested on samples of their own."""
    task = uneven()
    rows = [np.arange(k, k + n) for k, n in ((0, 3), (3, 7), (10, 1), (11, 9), (20, 4))]
    return fl.Task(
        task.make, "cross_entropy", task.data, task.split, test=task.test, test_clients=rows,
        l2=0.01, dtype=torch.float64,
    )  # fmt: skip


def test_every_client_is_tested_on_its_own_samples() -> None:
    run = fl.train(with_own_test(), fl.FedAvg(lr=0.3), rounds=3, steps=4, batch_size=4)
    found = run.per_client()
    losses, accuracies = by_hand(run)
    np.testing.assert_allclose(found["client_test_loss"], losses, rtol=1e-12)
    np.testing.assert_array_equal(found["client_accuracy"], accuracies)
    assert found.samples.tolist() == [3, 7, 1, 9, 4]
    assert found.to_pandas()["samples"].sum() == 24


def test_a_share_of_the_test_data_follows_the_labels_a_client_trains_on() -> None:
    rng = np.random.default_rng(0)
    labels, test = rng.integers(0, 5, 4000), rng.integers(0, 6, 2000)
    split = fl.splits.dirichlet(labels, 20, 0.3)
    own = following(split, labels, test)
    assert len(np.unique(own.order)) == len(own.order) == (test < 5).sum()  # nobody trains on 5
    trained, tested = split.table(labels), own.table(test)[:, :5]
    expected = trained / trained.sum(0) * np.bincount(test)[:5]
    assert np.abs(tested - expected).max() < 1  # rounded up or down
    again = following(split, labels, test)
    np.testing.assert_array_equal(own.order, again.order)


def test_rounding_a_share_favours_no_client() -> None:
    """A hundred clients with ten samples of each label share twenty test samples."""
    labels, test = np.tile(np.arange(10), 100), np.tile(np.arange(10), 2)
    each = fl.splits.Split.of(np.arange(1000).reshape(100, 10).tolist())
    own = following(each, labels, test)
    assert own.sizes.max() <= 3
    assert own.sizes.sum() == 20


def test_writers_have_their_own_test_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    writer, writer_test = np.repeat([4, 7, 9], [6, 5, 4]), np.array([9, 4, 9, 2, 7, 7])
    np.savez(
        tmp_path / "femnist.npz", x_train=rng.integers(0, 255, (15, 28, 28), np.uint8),
        y_train=rng.integers(0, 62, 15), writer_train=writer,
        x_test=rng.integers(0, 255, (6, 28, 28), np.uint8), y_test=rng.integers(0, 62, 6),
        writer_test=writer_test,
    )  # fmt: skip
    task = fl.tasks.images("femnist", split="by-id", data=str(tmp_path))
    assert [rows.tolist() for rows in split_of_test(task)] == [[1], [4, 5], [0, 2]]


def test_held_out_samples_are_their_clients_own_test_data() -> None:
    x, client = np.arange(40, dtype=np.float32)[:, None], np.repeat([0, 1, 2], [10, 20, 10])
    task = fl.Task.from_arrays(x, x[:, 0], client=client, hold_out=0.3)
    for number, rows in enumerate(split_of_test(task)):
        values = task.test[0][torch.from_numpy(rows), 0].numpy().astype(int)
        assert (client[values] == number).all()
    assert split_of_test(task).sizes.tolist() == [3, 6, 3]


def test_mean_deviation_worst_tenth_and_histogram() -> None:
    values = np.array([*np.linspace(0.05, 0.95, 19), 1.0, np.nan])
    samples = np.array([5] * 20 + [0])
    found = fl.ClientMetrics(
        {"client_accuracy": values, "client_test_loss": values}, samples,
        {"client_accuracy": "higher", "client_test_loss": "lower"}, frozenset({"client_accuracy"}),
    ).summary(bins=4)  # fmt: skip
    tested = values[:20]
    assert found["client_accuracy_mean"] == pytest.approx(tested.mean())
    assert found["client_accuracy_std"] == pytest.approx(tested.std())
    assert found["client_accuracy_worst"] == pytest.approx(0.075)  # two of twenty
    assert found["client_test_loss_worst"] == pytest.approx(0.975)
    shown = histograms(found)
    assert shown["client_accuracy"][:2] == (0.0, 1.0)
    assert shown["client_test_loss"][:2] == pytest.approx((0.05, 1.0))
    assert sum(shown["client_test_loss"][2]) == sum(shown["client_accuracy"][2]) == 20


def test_a_diverged_client_shows_as_missing() -> None:
    way = {"client_test_loss": "lower"}
    found = fl.ClientMetrics(
        {"client_test_loss": np.array([1.0, np.inf, np.nan])}, np.array([1, 1, 1]), way, frozenset()
    ).summary(2)
    assert np.isnan(found["client_test_loss_worst"])
    assert found["client_test_loss_bin/0"] == 1


def test_personalised_models_take_local_steps_first() -> None:
    """Whole batches: y = x − lr·∇f_i(x), three times, by hand."""
    run = fl.train(with_own_test(), fl.FedAvg(lr=0.3), rounds=2, steps=4, batch_size=4)
    found = run.per_client(fl.PerClient(steps=3, lr=0.2, batch_size=None))
    own = []
    for rows in run.task.split:
        y = run.x.clone()
        inputs, labels = (t[torch.from_numpy(rows)] for t in run.task.data)
        for _ in range(3):
            y = y.detach().requires_grad_()
            output = functional_call(run.task.model, run.task.state_dict(y), (inputs,))
            loss = nn.functional.cross_entropy(output, labels) + 0.01 / 2 * (y @ y)
            y = y - 0.2 * torch.autograd.grad(loss, y)[0]
        own.append(y.detach())
    losses, accuracies = by_hand(run, torch.stack(own))
    np.testing.assert_allclose(found["personal_test_loss"], losses, rtol=1e-11)
    np.testing.assert_array_equal(found["personal_accuracy"], accuracies)


SETTINGS = {
    "rounds": 3, "steps": 3, "batch_size": 4, "per_client": fl.PerClient(steps=2, batch_size=3),
}  # fmt: skip


def over_clients(run: fl.Run) -> np.ndarray:
    names = [n for n in run.history if n.startswith(("client_", "personal_"))]
    assert len(names) == 4 * 15
    return np.array([[row[n] for n in names] for row in run.history.rows])


def test_every_engine_has_the_same_numbers() -> None:
    task, method = with_own_test(), fl.Scaffold(lr=0.2)
    expected = over_clients(fl.train(task, method, engine="vmap", workers=1, **SETTINGS))
    for how in ({"engine": "loop"}, {"engine": "debug"}, {"engine": "vmap", "workers": 2}):
        found = over_clients(fl.train(task, method, **{"workers": 1, **how, **SETTINGS}))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10, err_msg=str(how))
    many = fl.train_many(task, [(method, 0), (method, 1)], together=True, engine="vmap", **SETTINGS)
    np.testing.assert_allclose(over_clients(many[0]), expected, rtol=1e-10, atol=1e-10)


def test_every_device_has_the_same_numbers(device: str) -> None:
    expected = over_clients(fl.train(with_own_test(), fl.FedAvg(lr=0.2), workers=1, **SETTINGS))
    there = with_own_test().to(device)
    found = over_clients(fl.train(there, fl.FedAvg(lr=0.2), engine="vmap", workers=1, **SETTINGS))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_stacked_clients_in_chunks_are_the_clients_one_by_one() -> None:
    run = fl.train(with_own_test(), fl.FedAvg(lr=0.3), rounds=1, engine="vmap", workers=1)
    setting, found = fl.PerClient(steps=2, batch_size=3), []
    for room in (1, 2, 5):
        run.session.execution = replace(run.session.settled, room=room)
        found.append(run.per_client(setting)["personal_test_loss"])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-12)


def test_a_model_that_cannot_be_stacked_is_personalised_one_client_at_a_time() -> None:
    """BatchNorm over batches of different sizes."""
    task = uneven(sizes=(13, 4, 9, 6, 22))
    norm = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    own = fl.Task(norm, "cross_entropy", task.data, task.split, test=task.test, dtype=torch.float64)
    run = fl.train(own, fl.FedAvg(lr=0.1), rounds=2, steps=2, per_client=fl.PerClient(2))
    assert np.isfinite(run.history["personal_test_loss_mean"]).all()


def test_looking_at_clients_changes_nothing_else() -> None:
    method, plain = fl.Scaffold(lr=0.2), {k: v for k, v in SETTINGS.items() if k != "per_client"}
    with_clients = fl.train(shared(), method, **SETTINGS)
    without = fl.train(shared(), method, **plain)
    assert torch.equal(with_clients.x, without.x)
    assert with_clients.ledger.up == without.ledger.up
    assert with_clients.counters == without.counters


def test_a_resumed_run_records_the_same(tmp_path: Path) -> None:
    method, more = fl.FedAvg(lr=0.2), {k: v for k, v in SETTINGS.items() if k != "rounds"}
    whole = fl.train(shared(), method, rounds=4, **more)
    fl.train(shared(), method, rounds=2, out=tmp_path / "a", **more)
    resumed = fl.train(shared(), method, rounds=4, out=tmp_path / "a", resume="auto", **more)
    np.testing.assert_array_equal(over_clients(resumed), over_clients(whole))
    stored = fl.runs.read(tmp_path / "a")
    np.testing.assert_array_equal(over_clients(stored), over_clients(whole))
    np.testing.assert_array_equal(
        stored.clients["client_accuracy"], whole.per_client()["client_accuracy"]
    )


def test_the_worst_tenth_can_be_a_target_and_is_in_the_table() -> None:
    task = fl.tasks.digits(split="dirichlet", split_value=0.5)
    goal = {"client_accuracy_worst": 0.3}
    result = fl.compare(task, {"a": fl.FedAvg(lr=1.0)}, rounds=9, target=goal, per_client=True)
    run = result.entries["a"].runs[0]
    reached = int(result.rounds_to_target("a")[0])
    assert run.history["client_accuracy_worst"][reached] >= 0.3
    assert run.history.direction("client_accuracy_std") == "lower"
    assert (
        fl.train(task, fl.FedAvg(lr=1.0), rounds=9, target=goal, per_client=True).rounds == reached
    )
    per = fl.PerClient(steps=1)
    (row,) = fl.compare(
        task, [fl.FedAvg(lr=1.0)], rounds=1, metric="accuracy", per_client=per
    ).table()
    assert {"client_accuracy", "worst tenth", "personal_accuracy", "personal worst tenth"} <= {*row}


def test_the_command_line_shows_clients(tmp_path: Path) -> None:
    words = [
        "run",
        "--rounds",
        "2",
        "--per-client",
        "--personal-steps",
        "2",
        "--out",
        str(tmp_path / "a"),
    ]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "client accuracy worst" in shown.output
    assert "personal accuracy histogram" in shown.output
    listed = CliRunner().invoke(app, ["runs", "show", str(tmp_path / "a")]).output
    assert "client accuracy histogram" in listed
    assert "bin/" not in listed


def test_what_is_missing_is_said() -> None:
    task = fl.problems.theorem2()
    with pytest.raises(fl.FairleadError, match="needs test data"):
        fl.train(task, fl.FedAvg(lr=0.1), rounds=1, per_client=True)
    x = torch.randn(30, 2)
    numbers = fl.Task(
        nn.Linear(2, 2), nn.MSELoss(), (x, x), [range(15), range(15, 30)], test=(x, x)
    )
    with pytest.raises(fl.FairleadError, match="test_clients"):
        fl.train(numbers, fl.FedAvg(lr=0.1), rounds=1, per_client=True)
    for rows in ([[0]], [[0], [30]], [[], []]):
        with pytest.raises(fl.FairleadError, match="test_clients"):
            fl.Task(
                nn.Linear(2, 2), "squared", (x, x), numbers.split, test=(x, x), test_clients=rows
            )
    with pytest.raises(fl.FairleadError, match="at least 0 steps"):
        fl.PerClient(steps=-1)
