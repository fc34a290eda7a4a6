"""Many runs at once give what single runs give."""

from __future__ import annotations

import dataclasses
import os
import signal

import numpy as np
import pytest
import torch
from conformance import METHODS, ROWS
from conftest import shared, uneven
from torch import nn

import fairlead as fl
from fairlead.schedules import scaled

WORK = {"rounds": 5, "cohort": 3, "batch_size": 4, "dropout": 0.25, "engine": "vmap"}
EPOCHS = {**WORK, "epochs": 2}
RAGGED = {**WORK, "steps": [1, 5, 3, 4, 2], "weighting": "size"}
COHORTS = [[0, 2], [1], [3, 4], [0, 1, 2, 3, 4], [2]]


def _variants(method: fl.Algorithm) -> list[tuple[fl.Algorithm, int]]:
    lr = method.rates()["lr"]
    return [(method.with_lr(scaled(lr, f)), seed) for f in (1.0, 0.4) for seed in (11, 12, 13)]


def _agree(one: fl.Run, two: fl.Run) -> None:
    for key, value in one.state.tensors().items():
        torch.testing.assert_close(value.cpu(), two.state.tensors()[key].cpu(), rtol=0, atol=1e-10)
    if one.session.states.store is not None:
        kept = two.session.states.store.export()
        for key, value in one.session.states.store.export().items():
            torch.testing.assert_close(value, kept[key], rtol=0, atol=1e-10)
    torch.testing.assert_close(
        one.session.buffers.cpu(), two.session.buffers.cpu(), rtol=0, atol=1e-10
    )
    assert dataclasses.asdict(one.counters) == dataclasses.asdict(two.counters)
    assert list(one.history) == list(two.history)
    for name in one.history:
        if name != "seconds":
            np.testing.assert_allclose(one.history[name], two.history[name], rtol=0, atol=1e-9)
    assert (one.stopped, one.rounds) == (two.stopped, two.rounds)


@pytest.mark.parametrize("settings", [EPOCHS, RAGGED], ids=["epochs", "steps"])
@pytest.mark.parametrize("name", ROWS)
def test_runs_at_once_are_the_single_runs(name: str, settings: dict, device: str) -> None:
    task, runs = shared(device), _variants(METHODS[name])
    many = fl.train_many(task, runs, together=True, drift=True, **settings)
    for (method, seed), run in zip(runs, many, strict=True):
        _agree(run, fl.train(task, method, seed=seed, drift=True, **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 2, "eval_every": 2},
        {"steps": 2, "eval_every": 3, "objective": False},
        {"steps": 2, "weighting": [1, 2, 3, 4, 5]},
        {"steps": 2, "cohort": COHORTS},
        {"steps": fl.Geometric(0.3), "dropout": [[0, 1, 2, 3, 4], [], [0], [], [1, 2]]},
        {"batch_size": None, "cohort": COHORTS, "batches": lambda k, i: [[0]] * (1 + (k + i) % 3)},
    ],
    ids=["some-rounds", "no-objective", "weights", "cohorts", "lost-start", "batches"],
)
def test_evaluations_weights_and_given_clients_and_batches(settings: dict) -> None:
    task, runs = uneven(), _variants(METHODS["scaffold-qsgd"])
    settings = {**WORK, "dropout": 0.0, "drift": True, **settings}
    many = fl.train_many(task, runs, together=True, **settings)
    for (method, seed), run in zip(runs, many, strict=True):
        _agree(run, fl.train(task, method, seed=seed, **settings))


def test_parts_that_fit_the_memory_change_nothing() -> None:
    runs = _variants(METHODS["scaffold"])
    room = fl.Simulate("vmap", memory=50_000)
    many = fl.train_many(uneven(), runs, **{**EPOCHS, "engine": room})
    assert (
        3 <= many[0].session.execution.room < 18
    )  # at least one cohort of three fits, but not all six
    for (method, seed), run in zip(runs, many, strict=True):
        _agree(run, fl.train(uneven(), method, seed=seed, **EPOCHS))


def test_each_run_ends_for_its_own_reason() -> None:
    task = fl.problems.random_quadratics(clients=4, gradient=10.0)
    runs = [(fl.Scaffold(lr=lr), 0) for lr in (0.5, 0.05, 1e6)]
    work = {"rounds": 60, "steps": 5, "target": {"distance": 1e-2}, "engine": "vmap"}
    many = fl.train_many(task, runs, together=True, **work)
    assert [run.stopped for run in many] == ["target", "rounds", "diverged"]
    for (method, seed), run in zip(runs[:2], many, strict=False):
        single = fl.train(task, method, seed=seed, **work)
        assert (run.rounds, run.stopped) == (single.rounds, single.stopped)
        torch.testing.assert_close(run.x, single.x, rtol=0, atol=1e-10)


def test_methods_that_differ_in_more_than_the_step_size() -> None:
    runs = [(fl.FedProx(lr=0.1, mu=mu), 0) for mu in (0.0, 1.0)] + [(fl.FedAvg(lr=0.1), 0)]
    prox, held, plain = fl.train_many(uneven(), runs, **EPOCHS)
    torch.testing.assert_close(prox.x, plain.x)
    assert not torch.allclose(prox.x, held.x)


def test_noise_and_random_lengths_and_statistics() -> None:
    task = uneven()
    task = task.replace(noise=0.1)
    settings = {**WORK, "steps": fl.Geometric(0.4)}
    runs = _variants(fl.FedAvg(lr=fl.schedules.InverseSqrt(0.2, per="step")))
    for (m, seed), run in zip(runs, fl.train_many(task, runs, **settings), strict=True):
        _agree(run, fl.train(task, m, seed=seed, **settings))
    x, y = torch.randn(40, 6, dtype=torch.float64), torch.randint(3, (40,))
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    parts = [range(k, k + 10) for k in (0, 10, 20, 30)]
    task = fl.Task(net, "cross_entropy", (x, y), parts, test=(x, y), dtype=torch.float64)
    settings = {"rounds": 4, "cohort": 2, "batch_size": 5, "steps": 4, "engine": "vmap"}
    runs = _variants(METHODS["scaffold"])
    for (m, seed), run in zip(runs, fl.train_many(task, runs, **settings), strict=True):
        _agree(run, fl.train(task, m, seed=seed, **settings))


def test_augmented_images() -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 1, 6, 6), dtype=np.uint8)
    y = torch.randint(3, (40,))
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    parts = [range(10), range(10, 25), range(25, 40)]
    task = fl.Task(
        net, "cross_entropy", (x, y), parts, transform=fl.Images(flip=True, crop=1),
        dtype=torch.float64,
    )  # fmt: skip
    settings = {"rounds": 3, "batch_size": 5, "epochs": 1, "engine": "vmap"}
    runs = _variants(METHODS["fedavg"])
    for (m, seed), run in zip(runs, fl.train_many(task, runs, **settings), strict=True):
        _agree(run, fl.train(task, m, seed=seed, **settings))


def test_other_engines_train_one_after_another() -> None:
    runs = _variants(METHODS["scaffold"])
    many = fl.train_many(uneven(), runs, **{**EPOCHS, "engine": "loop"})
    for (method, seed), run in zip(runs, many, strict=True):
        _agree(run, fl.train(uneven(), method, seed=seed, **{**EPOCHS, "engine": "loop"}))
    with pytest.raises(fl.FairleadError, match="cannot be trained together: the engine is loop"):
        fl.train_many(uneven(), runs, together=True, **{**EPOCHS, "engine": "loop"})


def test_a_step_size_used_outside_of_steps_is_not_taken_for_that_of_another_run() -> None:
    @dataclasses.dataclass(frozen=True)
    class Odd(fl.FedAvg):
        def local_steps(self, client, x):
            sent = super().local_steps(client, x)
            return sent.map(lambda v: v * self.lr)

    runs = [(Odd(lr=lr), 0) for lr in (0.1, 0.2)]
    with pytest.raises(TypeError, match="Rates"):
        fl.train_many(uneven(), runs, together=True, **EPOCHS)
    many = fl.train_many(uneven(), [(Odd(lr=0.1), seed) for seed in (0, 1)], **EPOCHS)
    _agree(many[1], fl.train(uneven(), Odd(lr=0.1), seed=1, **EPOCHS))


def test_folders_and_callbacks_belong_to_their_runs(tmp_path) -> None:
    class Count(fl.Callback):
        def __init__(self) -> None:
            self.rows: list = []

        def row(self, row) -> None:
            self.rows.append(row)

    told = [Count() for _ in range(6)]
    runs = _variants(METHODS["scaffold"])
    folders = [tmp_path / str(k) for k in range(6)]
    many = fl.train_many(uneven(), runs, callbacks=lambda k: [told[k]], outs=folders, **EPOCHS)
    for run, count, folder in zip(many, told, folders, strict=True):
        assert count.rows == run.history.rows == fl.runs.read(folder).history.rows
    rest = fl.train(
        uneven(), runs[4][0], seed=runs[4][1], resume=folders[4], **{**EPOCHS, "rounds": 8}
    )
    whole = fl.train(uneven(), runs[4][0], seed=runs[4][1], **{**EPOCHS, "rounds": 8})
    torch.testing.assert_close(rest.x, whole.x, rtol=0, atol=1e-10)
    with pytest.raises(fl.FairleadError, match="2 folders for 6 runs"):
        fl.train_many(uneven(), runs, outs=folders[:2], **EPOCHS)


class Breaks(fl.Callback):
    """Lets much time pass per evaluation, so that checkpoints are due, and fails in a round."""

    def __init__(self, monkeypatch, at: int) -> None:
        self.now, self.at, self.rows = 1000.0, at, 0
        monkeypatch.setattr("fairlead.run.checkpoint.time.monotonic", lambda: self.now)

    def row(self, row) -> None:
        self.now, self.rows = self.now + 700.0, self.rows + 1
        if row["round"] == self.at:
            raise RuntimeError("the power failed")


@pytest.mark.parametrize("name", ["scaffold", "mime", "fedglomo"])
@pytest.mark.parametrize("place", [0, 4])
def test_runs_at_once_go_on_to_the_same_bytes(name: str, place: int, tmp_path, monkeypatch) -> None:
    runs = _variants(METHODS[name])
    runs[2] = (runs[2][0].with_lr(1e40), runs[2][1])  # it diverges
    work = {**EPOCHS, "rounds": 8}
    whole = fl.train_many(uneven(), runs, **work)
    folders = [tmp_path / str(k) for k in range(6)]
    for at in (1, 4, 6):  # run `place` fails while the runs before it have written a checkpoint
        fails = Breaks(monkeypatch, at)
        with pytest.raises(RuntimeError, match="power"):
            fl.train_many(
                uneven(), runs, outs=folders, resume="auto", **work,
                callbacks=lambda k, fails=fails: [fails] * (k == place),
            )  # fmt: skip
        assert fails.rows <= {1: 2, 4: 5, 6: 3}[at]  # the last one did not start again
    again = fl.train_many(uneven(), runs, outs=folders, resume="auto", **work)
    for one, two, folder in zip(whole, again, folders, strict=True):
        assert (one.stopped, one.rounds) == (two.stopped, two.rounds)
        assert all(torch.equal(v, two.state.tensors()[k]) for k, v in one.state.tensors().items())
        assert fl.runs.first_difference(one.history, two.history) is None
        assert fl.runs.first_difference(one.history, fl.runs.read(folder).history) is None
        assert fl.runs.read(folder).status == one.stopped
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    heard = Breaks(monkeypatch, 0)
    fl.train_many(
        uneven(), runs, outs=folders, resume="auto", callbacks=lambda k: [heard], **work
    )  # fmt: skip
    assert heard.rows == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


class Halts(fl.Callback):
    """Ends a run after some rounds, as an interrupt would."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round(self, view) -> None:
        if view.round == self.rounds:
            os.kill(os.getpid(), signal.SIGTERM)


def test_runs_that_had_begun_alone_go_on_alone(tmp_path) -> None:
    made = fl.FedGLOMO(0.1, compressor=fl.QSGD(2))  # whose noise depends on the round
    work = {
        "rounds": 10,
        "steps": 3,
        "batch_size": 4,
        "cohort": 3,
        "engine": "vmap",
        "eval_every": 2,
    }
    alone = [fl.train(uneven(), made, seed=k, **work) for k in (0, 1)]
    folders = [tmp_path / str(k) for k in range(4)]
    for seed, rounds in ((0, 7), (1, 3)):
        run = fl.train(
            uneven(), made, seed=seed, out=folders[seed], callbacks=[Halts(rounds)], **work
        )
        assert run.stopped == "interrupted"
    both = [(made, k) for k in range(4)]
    many = fl.train_many(uneven(), both, outs=folders, resume="auto", **work)
    for one, other in zip(many, alone, strict=False):
        assert torch.equal(one.x, other.x)
    for run, (method, seed) in list(zip(many, both, strict=True))[2:]:
        _agree(run, fl.train(uneven(), method, seed=seed, **work))
        assert "2 runs at once" in run.engine


def test_runs_that_join_others_keep_their_rounds(tmp_path) -> None:
    work = {"rounds": 10, "steps": 3, "batch_size": 4, "engine": "vmap"}
    folders, seen = [tmp_path / str(k) for k in range(4)], {}
    runs = [(fl.Scaffold(0.1), seed) for seed in range(4)]
    whole = fl.train_many(uneven(), runs[:2], **work)
    begun = fl.train_many(
        uneven(), runs[:2], outs=folders[:2], callbacks=lambda k: [Halts(6)] * (k == 0), **work
    )
    assert {run.stopped for run in begun} == {"interrupted"}

    class First(fl.Callback):
        def __init__(self, place: int) -> None:
            self.place = place

        def round(self, view) -> None:
            seen.setdefault(self.place, view.round)

    again = fl.train_many(
        uneven(), runs, outs=folders, resume="auto", callbacks=lambda k: [First(k)], **work
    )
    assert {seen[0], seen[1]} == {begun[0].rounds + 1}
    assert seen[2] == seen[3] == 1
    for one, two in zip(whole, again, strict=False):
        assert torch.equal(one.x, two.x)


def test_runs_one_after_another_go_on_each_from_its_own_round(tmp_path, monkeypatch) -> None:
    runs, work = _variants(METHODS["scaffold"])[:3], {**EPOCHS, "engine": "loop"}
    whole = fl.train_many(uneven(), runs, **work)
    folders = [tmp_path / str(k) for k in range(3)]
    fails = Breaks(monkeypatch, 3)
    with pytest.raises(RuntimeError, match="power"):
        fl.train_many(uneven(), runs, outs=folders, resume="auto", **work,
                      callbacks=lambda k: [fails] * (k == 1))  # fmt: skip
    rest = Breaks(monkeypatch, 9)
    again = fl.train_many(uneven(), runs, outs=folders, resume="auto", **work,
                          callbacks=lambda k: [rest])  # fmt: skip
    assert rest.rows == 3 + 6  # rounds 3 to 5 of the second run, all of the third
    for one, two in zip(whole, again, strict=True):
        assert torch.equal(one.x, two.x)
        assert fl.runs.first_difference(one.history, two.history) is None
    with pytest.raises(fl.FairleadError, match="a folder per run"):
        fl.train_many(uneven(), runs, resume="auto", **work)
    with pytest.raises(fl.FairleadError, match="other settings"):
        fl.train_many(
            uneven(), runs, outs=folders, resume="auto", **{**work, "batch_size": 3}
        )  # fmt: skip
