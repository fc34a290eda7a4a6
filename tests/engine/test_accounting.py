"""The ledger: every bit, both ways."""

from __future__ import annotations

import numpy as np
import torch
from conftest import uneven

import fairlead as fl

RUN = {"rounds": 2, "cohort": [[0, 2, 4], [1, 2, 3]], "dropout": [[2], []], "batch_size": 6}


def test_scaffold_by_hand() -> None:
    """d = 57 in float32, two vectors each way; the lost client hears and does not answer."""
    run = fl.train(uneven(dtype=torch.float32), fl.Scaffold(lr=0.1), **RUN)
    d = 57
    assert run.ledger.down == (3 + 3) * 2 * 32 * d
    assert run.ledger.up == (2 + 3) * 2 * 32 * d
    up, down = run.ledger.by_client(5)
    assert up.tolist() == [2 * 32 * d * n for n in (1, 1, 1, 1, 1)]
    assert down.tolist() == [2 * 32 * d * n for n in (1, 1, 2, 1, 1)]
    assert run.history["bits_up"].tolist() == [0, 2 * 2 * 32 * d, 5 * 2 * 32 * d]
    assert (run.history["bits"] == run.history["bits_up"] + run.history["bits_down"]).all()


def test_fedpvr_sends_and_keeps_control_variates_of_its_part_only() -> None:
    task = uneven(dtype=torch.float32)
    run = fl.train(task, fl.FedPVR(lr=0.1, layers=-1), **RUN)
    d, part = 57, 21  # the last layer: 3 × 6 weights and 3 biases
    assert run.ledger.up == 5 * 32 * (d + part)
    assert run.state.c.shape == (part,)
    assert run.session.states.store.read(np.array([0])).c.shape == (1, part)


def test_fedglomo_sends_two_quantized_vectors_or_one_plain() -> None:
    task, d = uneven(dtype=torch.float32), 57
    plain = fl.train(task, fl.FedGLOMO(lr=0.1), **RUN)
    assert plain.ledger.up == 5 * 32 * d
    coded = fl.train(task, fl.FedGLOMO(lr=0.1, compressor=fl.QSGD(2)), **RUN)
    assert coded.ledger.up == 5 * 2 * (32 + 8 * int(np.ceil(3 * d / 8)))
    assert coded.ledger.nominal_up == 5 * 2 * 2 * d
    assert coded.ledger.down == 6 * 2 * 32 * d


def test_statistics_are_counted_too() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    )
    x, y = torch.randn(12, 3), torch.randint(2, (12,))
    task = fl.Task(model, "cross_entropy", (x, y), [range(6), range(6, 12)])
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=1)
    assert run.ledger.up == run.ledger.down == 2 * 32 * (task.dim + 9)


def test_exchanges_are_listed() -> None:
    run = fl.train(uneven(), fl.Mime(lr=0.1), **RUN)
    assert [e.round for e in run.ledger.exchanges] == [0, 0, 1, 1]
    assert run.counters.exchanges == 4
    assert run.ledger.exchanges[0].clients.tolist() == [0, 2, 4]
    assert run.ledger.exchanges[0].up.tolist() == [64 * 57, 0, 64 * 57]
