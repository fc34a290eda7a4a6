"""Batches that are drawn for many rounds at once are those of each round alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fairlead as fl
from fairlead.data.batches import Batches
from fairlead.engine.upcoming import Upcoming
from fairlead.engine.work import large_batch
from fairlead.run.train import planned, prepared


def _upcoming(seed: int = 3, **settings: Any) -> Upcoming:
    task = fl.problems.synthetic_logistic(clients=6, samples=20)
    settings = {"batch_size": 4, **settings}
    plan, local = planned(rounds=12, seed=seed, **settings)
    loop = prepared(task, fl.FedGLOMO(0.1), plan, local, "vmap", None, (), None)
    loop.engine.prepare(loop.session, plan.sampler.cohort(seed, 0, task.clients), 12)
    return loop.upcoming


@pytest.mark.parametrize("settings", [{"cohort": 3}, {"cohort": 4, "dropout": 0.4}, {}])
def test_large_batches_are_those_of_each_round_alone(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    upcoming, drawn = _upcoming(**settings), []
    draw = Batches.draw

    def counted(self: Batches, *given: Any, **more: Any) -> Any:
        drawn.append(self.batch_size)
        return draw(self, *given, **more)

    monkeypatch.setattr(Batches, "draw", counted)
    found = []
    for k in range(12):
        ids = upcoming.clients(k)[1]
        if len(ids):
            found.append((k, ids, [upcoming.session.large(k, ids, n) for n in (7, 7, 11)]))
    assert sorted(drawn) == [7, 11]
    for k, ids, (one, again, other) in found:
        alone = large_batch(upcoming.session.work(k), ids, 7)
        assert torch.equal(one.index, alone.index)
        assert torch.equal(one.index, again.index)
        assert np.array_equal(one.count, alone.count)
        assert other.index.shape[2] == 11


def test_other_clients_and_rounds_that_cannot_be_drawn_ahead_are_drawn_alone() -> None:
    upcoming = _upcoming(cohort=3)
    session, ids = upcoming.session, upcoming.clients(2)[1][:2]
    assert torch.equal(session.large(2, ids, 7).index, large_batch(session.work(2), ids, 7).index)
    replayed = _upcoming(batch_size=None, steps=fl.Geometric(0.5))
    everyone = replayed.clients(1)[1]
    alone = large_batch(replayed.session.work(1), everyone, 7)
    assert torch.equal(replayed.session.large(1, everyone, 7).index, alone.index)


def test_steps_and_large_batches_do_not_displace_each_other() -> None:
    upcoming, plain = _upcoming(cohort=3), _upcoming(cohort=3)
    for k in range(3):
        cohort, other = upcoming.cohort(k), plain.cohort(k)
        assert cohort is not None
        assert other is not None
        upcoming.session.large(k, cohort.ids, 4)  # as many samples as in a step
        assert torch.equal(cohort.draw.index, other.draw.index)


def test_a_finished_run_keeps_no_draws() -> None:
    task = fl.problems.synthetic_logistic(clients=6, samples=20)
    method = fl.FedGLOMO(0.1, first_batch=5)
    run = fl.train(task, method, rounds=3, steps=2, batch_size=4, engine="vmap")
    assert run.session.large == run.session.large_alone
    upcoming = _upcoming(cohort=3)
    ids = upcoming.clients(0)[1]
    before = upcoming.session.large(0, ids, 7)
    upcoming.close()
    assert not upcoming._drawn
    assert torch.equal(upcoming.session.large(0, ids, 7).index, before.index)
