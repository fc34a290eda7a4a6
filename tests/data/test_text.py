"""Text: windows, codes, and dialects whose best prediction is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fairlead as fl
from fairlead.data.text import dialects, encode, windows


def test_windows_are_followed_by_their_character() -> None:
    codes = np.random.default_rng(0).integers(0, 9, 40)
    x, y = windows(codes, 5, stride=3)
    assert x.dtype == torch.uint8
    assert len(x) == len(y) == 12
    for k in range(12):
        assert x[k].tolist() == codes[3 * k : 3 * k + 5].tolist()
        assert int(y[k]) == codes[3 * k + 5]
    with pytest.raises(fl.FairleadError, match="at least 6"):
        windows(codes[:5], 5)


def test_strangers_get_a_code_of_their_own() -> None:
    assert encode("hé", "abcdefgh").tolist() == [7, 8]


def test_dialects_belong_to_their_writers_and_to_their_seed() -> None:
    data = dialects(clients=4, length=200, window=8, characters=28, seed=1)
    assert data.groups.bincount().tolist() == [172] * 4
    assert len(data.y_test) == 4 * 12
    assert torch.equal(data.x, dialects(clients=4, length=200, window=8, characters=28, seed=1).x)
    assert not torch.equal(
        data.x, dialects(clients=4, length=200, window=8, characters=28, seed=2).x
    )
    with pytest.raises(fl.FairleadError, match=r"difference is 2\.0: it must be in \[0, 1\]"):
        dialects(difference=2.0)


def test_dialects_that_differ_are_less_alike() -> None:
    """How often two characters are followed by the one that another client's text has there most."""

    def alike(difference: float) -> float:
        data = dialects(clients=2, length=4000, window=2, characters=5, difference=difference)
        counts = np.zeros((2, 5, 5, 5))
        np.add.at(counts, (data.groups, data.x[:, 0], data.x[:, 1], data.y), 1)
        return float((counts[0].argmax(-1) == counts[1].argmax(-1)).mean())

    assert alike(0.0) > 0.85
    assert alike(1.0) < 0.6


def test_a_small_network_learns_the_common_part() -> None:
    data = dialects(clients=5, length=400, window=4, characters=6, difference=0.1)
    split = [torch.nonzero(data.groups == who)[:, 0].numpy() for who in range(5)]
    task = fl.Task(
        fl.models.char_gru(6, 6, 24), "cross_entropy", (data.x, data.y), split,
        test=(data.x_test, data.y_test),
    )  # fmt: skip
    run = fl.train(task, fl.FedAvg(lr=1.0), rounds=25, batch_size=32, eval_every=25)
    common = float(data.y_test.bincount().max()) / len(data.y_test)
    assert run.history.last("accuracy") > common + 0.2


def test_codes_that_do_not_fit_a_byte_are_refused() -> None:
    with pytest.raises(fl.FairleadError, match="from 0 to 255"):
        windows(np.array([1, 300, 2, 5]), 2)
