"""Callbacks: what they see, plain functions, stopping early and keeping the best model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import shared, toy, uneven

import fairlead as fl
from fairlead.run.callbacks import RoundView

WORK = {"steps": 2, "batch_size": 4}
METHOD = fl.FedAvg(lr=2.0)  # large enough for the loss to go up and down


def test_a_callback_sees_round_state_and_model() -> None:
    seen: list[RoundView] = []
    run = fl.train(
        shared(), fl.Scaffold(lr=0.1), rounds=3, eval_every=2, callbacks=[seen.append], **WORK
    )
    assert [view.round for view in seen] == [1, 2, 3]
    assert [view.evaluated for view in seen] == [False, True, True]
    last = seen[-1]
    assert last.state is run.state
    assert last.row == run.history.rows[-1]
    assert last.task is run.task
    inputs = run.task.test[0]
    assert torch.equal(last.model()(inputs), run.model()(inputs))
    assert not torch.equal(seen[0].model()(inputs), last.model()(inputs))


def test_a_plain_function_can_end_a_run() -> None:
    run = fl.train(shared(), METHOD, rounds=9, callbacks=[lambda view: view.round == 4], **WORK)
    assert (run.rounds, run.stopped) == (4, "callback")
    several = fl.train_many(
        shared(), [(METHOD, 0), (METHOD, 1)], rounds=9, together=True, engine="vmap",
        callbacks=lambda place: [lambda view: view.round == 3 + place], **WORK,
    )  # fmt: skip
    assert [run.rounds for run in several] == [3, 4]


@pytest.mark.parametrize("wrong", [3, "loss", fl.EarlyStopping])
def test_what_is_no_callback_is_refused(wrong) -> None:
    with pytest.raises(fl.FairleadError, match="pass a function of the round"):
        fl.train(shared(), METHOD, rounds=1, callbacks=[wrong])


def losses(values: list[float], stop: fl.EarlyStopping) -> int | None:
    """The place of the value at which it stops."""
    stop.begin({}, fl.History(better={"loss": "lower", "mine": "higher"}))
    for place, value in enumerate(values):
        if stop.row({"round": place, "loss": value, "mine": value}):
            return place
    return None


def test_when_it_stops() -> None:
    assert losses([5, 4, 3, 3, 3, 2], fl.EarlyStopping(patience=2)) == 4
    assert losses([5, 4, 3, 3.5, 2.9, 2.95, 2.92], fl.EarlyStopping(patience=2)) == 6
    assert losses([5, 4, 3.9, 3.8, 3.7], fl.EarlyStopping(patience=2, least=0.5)) == 3
    assert losses([5, 4, 3, 2, 1], fl.EarlyStopping(patience=1)) is None
    assert losses([1, 2, 3, 2, 1], fl.EarlyStopping("mine", patience=2)) == 4
    assert losses([5, np.nan, np.nan], fl.EarlyStopping(patience=2)) == 2
    assert losses([3, 2, 1], fl.EarlyStopping(better="higher", patience=2)) == 2


def test_what_early_stopping_refuses() -> None:
    with pytest.raises(fl.FairleadError, match="at least 1 evaluation"):
        fl.EarlyStopping(patience=0)
    with pytest.raises(fl.FairleadError, match="which way 'mae' is better"):
        fl.train(shared(), METHOD, rounds=1, callbacks=[fl.EarlyStopping("mae")])
    with pytest.raises(fl.FairleadError, match="metric of EarlyStopping"):
        fl.train(toy(), METHOD, rounds=1, callbacks=[fl.EarlyStopping("accuracy")])
    with pytest.raises(fl.FairleadError, match="no best model yet"):
        fl.BestModel().model()


def test_one_instance_serves_several_runs() -> None:
    stop = fl.EarlyStopping("loss", patience=3)
    first, second = (
        fl.train(shared(), METHOD, rounds=40, callbacks=[stop], **WORK).rounds for _ in range(2)
    )
    assert first == second < 40


def test_the_best_model_is_that_of_the_best_round() -> None:
    best = fl.BestModel("accuracy")
    run = fl.train(shared(), METHOD, rounds=12, callbacks=[best], **WORK)
    values = run.history["accuracy"][1:]
    assert best.best_round == 1 + int(values.argmax())
    assert best.value == values.max()
    inputs, labels = run.task.test
    assert float((best.model()(inputs).argmax(1) == labels).double().mean()) == pytest.approx(
        best.value
    )
    again = fl.train(shared(), METHOD, rounds=best.best_round, **WORK)
    assert torch.equal(best.x, again.x)


def both() -> list[fl.Callback]:
    return [fl.EarlyStopping("loss", patience=4), fl.BestModel("loss")]


def whole() -> tuple[fl.Run, fl.BestModel]:
    callbacks = both()
    run = fl.train(shared(), METHOD, rounds=60, callbacks=callbacks, **WORK)
    assert run.stopped == "callback"
    return run, callbacks[1]


def same(run: fl.Run, best: fl.Callback, expected: fl.Run, its_best: fl.BestModel) -> None:
    assert isinstance(best, fl.BestModel)
    assert run.rounds == expected.rounds
    assert run.stopped == "callback"
    assert torch.equal(run.x, expected.x)
    strip = [{k: v for k, v in row.items() if k != "seconds"} for row in run.history.rows]
    assert strip == [{k: v for k, v in r.items() if k != "seconds"} for r in expected.history.rows]
    assert (best.best_round, best.value) == (its_best.best_round, its_best.value)
    assert torch.equal(best.x, its_best.x)
    inputs = run.task.test[0]
    assert torch.equal(best.model()(inputs), its_best.model()(inputs))


def test_a_resumed_run_stops_in_the_same_round_with_the_same_best_model(tmp_path: Path) -> None:
    expected, its_best = whole()
    for at in range(1, expected.rounds, 3):
        folder = tmp_path / str(at)
        fl.train(shared(), METHOD, rounds=at, callbacks=both(), out=folder, **WORK)
        callbacks = both()
        run = fl.train(
            shared(), METHOD, rounds=60, callbacks=callbacks, out=folder, resume="auto", **WORK
        )
        same(run, callbacks[1], expected, its_best)
    callbacks = both()  # the run has ended: only what was kept comes back
    run = fl.train(
        shared(), METHOD, rounds=60, callbacks=callbacks, out=folder, resume="auto", **WORK
    )
    same(run, callbacks[1], expected, its_best)


def test_a_run_resumed_from_memory_too() -> None:
    expected, its_best = whole()
    first = fl.train(shared(), METHOD, rounds=5, callbacks=both(), **WORK)
    callbacks = both()
    run = fl.train(shared(), METHOD, rounds=60, callbacks=callbacks, resume=first, **WORK)
    same(run, callbacks[1], expected, its_best)


def test_with_several_processes_all_stop() -> None:
    expected, its_best = whole()
    callbacks = both()
    run = fl.train(shared(), METHOD, rounds=60, callbacks=callbacks, workers=2, **WORK)
    assert run.rounds == expected.rounds
    assert callbacks[1].best_round == its_best.best_round

    class AtOnce(fl.Callback):
        def row(self, row: object) -> bool:
            return True

    run = fl.train(uneven(), METHOD, rounds=5, callbacks=[AtOnce()], workers=2, **WORK)
    assert (run.rounds, run.stopped) == (0, "callback")
