"""What a round is expected to compute: counted by hand, and without a trace in the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fairlead as fl
from fairlead.engine.expected import BANDWIDTH, Cost, round_cost
from fairlead.engine.session import Session
from fairlead.run.train import planned, prepared

INPUTS, SAMPLES, BATCH = 20_000, 24, 4
DIM = 2 * INPUTS + 2


def _session(method: Any, **settings: Any) -> Session:
    torch.manual_seed(0)
    data = torch.randn(3 * SAMPLES, INPUTS), torch.randint(2, (3 * SAMPLES,))
    owners = [np.arange(k, 3 * SAMPLES, 3) for k in range(3)]
    model = torch.nn.Linear(INPUTS, 2)
    task = fl.Task(model, "cross_entropy", data, owners, dtype=torch.float32)
    plan, local = planned(rounds=5, batch_size=BATCH, **settings)
    return prepared(task, method, plan, local, "auto", None, (), None).session


def _cost(method: Any, **settings: Any) -> Cost:
    session = _session(method, **settings)
    ids = np.array([0, 2])
    return round_cost(session, ids, session.draw(0, ids))


def test_a_step_of_sgd_moves_seven_vectors() -> None:
    ten, twenty = (_cost(fl.FedAvg(0.1), steps=k) for k in (10, 20))
    assert (ten.gradients, twenty.gradients) == (10, 20)
    # 2 for the gradient, 2 for its product with the step size, 3 for y minus that; and the samples, read and written
    step = 4 * (7 * DIM + 2 * BATCH * INPUTS)
    assert twenty.bytes - ten.bytes == pytest.approx(10 * step, rel=0.01)


@pytest.mark.parametrize(
    ("method", "gradients"),
    [
        (fl.Scaffold(0.1), 6),
        (fl.Scaffold(0.1, option="I"), 6 + SAMPLES / BATCH),
        (fl.FedGLOMO(0.1, first_batch=2 * BATCH), 2 * 2 + 5 * 4),
        (fl.FedGLOMO(0.1), 2 * SAMPLES / BATCH + 5 * 4),
        (fl.FedSGD(0.1), SAMPLES / BATCH),
    ],
)
def test_gradients_are_counted_in_batches(method: Any, gradients: float) -> None:
    assert _cost(method, steps=6).gradients == pytest.approx(gradients)


def test_rounds_of_one_step_and_uneven_rounds_are_counted() -> None:
    assert _cost(fl.FedAvg(0.1), steps=1).gradients == 1
    assert (
        _cost(fl.FedAvg(0.1), steps=[2, 9, 5]).gradients == 5
    )  # of the longest of clients 0 and 2


def test_nothing_is_left_of_it() -> None:
    session = _session(fl.Scaffold(0.1), steps=3)
    before, ids = session.gradients, np.arange(3)
    round_cost(session, ids, session.draw(0, ids))
    assert session.gradients is before
    assert session.accounts.counters.gradients == session.accounts.counters.exchanges == 0
    assert not len(session.states.touched)
    assert not session.accounts.ledger.exchanges


def test_seconds_are_those_of_gradients_and_of_the_vectors_of_all_clients() -> None:
    assert Cost(6, 3 * BANDWIDTH).seconds(0.5, 4) == 6 * 0.5 + 4 * 3
