"""Holding out a share of every client's samples."""

from __future__ import annotations

import numpy as np
import pytest

import fairlead as fl
from fairlead.data.held_out import ENOUGH, held_out


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
def test_every_client_gives_its_share_and_keeps_some(share: float) -> None:
    sizes = np.array([1, 2, 9, ENOUGH, 55, 300])
    split = fl.splits.Split(
        np.random.default_rng(0).permutation(sizes.sum()), np.cumsum([0, *sizes])
    )
    kept, rows = held_out(split, share, seed=3, least=1)
    given = sizes - kept.sizes
    wanted = np.rint(share * sizes)
    wanted[sizes >= ENOUGH] = np.maximum(wanted[sizes >= ENOUGH], 1)
    np.testing.assert_array_equal(given, np.minimum(wanted, sizes - 1))
    assert sorted([*kept.order, *rows]) == list(range(sizes.sum()))
    for mine, all_mine in zip(kept, split, strict=True):
        assert [row for row in all_mine if row in set(mine)] == list(mine)  # in the same order
    again, same = held_out(split, share, seed=3, least=1)
    np.testing.assert_array_equal(rows, same)
    np.testing.assert_array_equal(kept.order, again.order)


def test_another_seed_holds_out_other_samples() -> None:
    split = fl.splits.Split.of([range(50), range(50, 100)])
    assert set(held_out(split, 0.2, 0)[1]) != set(held_out(split, 0.2, 1)[1])


def test_a_sample_of_several_clients_is_trained_on_by_none() -> None:
    split = fl.splits.Split.of([range(40), range(20, 60), range(40)])
    kept, rows = held_out(split, 0.2, seed=0)
    assert not set(kept.order) & set(rows)
    assert (kept.sizes > 0).all()


def test_refusals() -> None:
    for share in (0.0, 1.0, -1.0, 2.0):
        with pytest.raises(fl.FairleadError, match=r"valid is .*: must be in \(0, 1\)"):
            held_out(fl.splits.Split.of([range(9)]), share, 0, "valid")
    with pytest.raises(fl.FairleadError, match="no client has enough samples"):
        held_out(fl.splits.Split.of([range(9), [9]]), 0.01, 0, "valid", least=1)
    with pytest.raises(fl.FairleadError, match=r"leaves client \d no sample: hold out less"):
        held_out(fl.splits.Split.of([[0, 1], [0], [1]]), 0.5, 0)
