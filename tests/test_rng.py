"""Counter-based randomness."""

from __future__ import annotations

import math

import pytest
import torch

from fairlead.rng import Purpose, normal, philox, uniform, words

# the known answers that Random123 publishes for philox4x32-10
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_known_answers(counter, key, answer, device: str) -> None:
    on_device = tuple(torch.tensor(c, device=device) for c in counter)
    assert tuple(int(w) for w in philox(on_device, key)) == answer


def test_draws_differ_in_every_coordinate() -> None:
    base = {"seed": 1, "purpose": Purpose.BATCH, "round": 2, "client": 3, "step": 4, "block": 5}
    seen = [words(**base)]
    changes = {"seed": [2, 1 + (1 << 32)], "purpose": [Purpose.NOISE], "round": [3], "client": [4],
               "step": [5], "block": [6]}  # fmt: skip
    for name, values in changes.items():
        seen += [words(**{**base, name: value}) for value in values]
    assert len({tuple(w.tolist()) for w in seen}) == len(seen)


def test_clients_draw_the_same_alone_and_together() -> None:
    ids = torch.tensor([4, 9, 2])
    together = normal(7, 1, ids, 0, 5)
    alone = torch.cat([normal(7, 1, ids[i : i + 1], 0, 5) for i in range(3)])
    assert torch.equal(together, alone)


def test_uniform_and_normal_moments() -> None:
    """Means within five standard errors: a false alarm in about one of two million seeds."""
    n = 40_000
    u = uniform(0, Purpose.COHORT, 0, torch.tensor([0]), n)[0]
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    assert abs(float(u.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / n)
    z = normal(0, 0, torch.tensor([0]), 0, n)[0]
    assert abs(float(z.mean())) < 5 / math.sqrt(n)
    assert abs(float((z**2).mean()) - 1) < 5 * math.sqrt(2 / n)
