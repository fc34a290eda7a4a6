"""Compressors: unbiased, bounded, exact on the wire."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fairlead as fl
from fairlead.compress import Compressor, Noise, parse
from fairlead.compress.bits import BitReader, gamma_width, read_fixed, write_bits
from fairlead.rng import hashed

ALL: list[Compressor] = [
    fl.Identity(),
    fl.BFloat16(),
    fl.QSGD(1),
    fl.QSGD(2),
    fl.QSGD(8),
    fl.QSGD(levels=5),
    fl.QSGD(1, wire="elias"),
    fl.QSGD(3, wire="elias"),
    fl.TopK(0.3),
    fl.TopK(2),
    fl.RandK(0.4),
    fl.ErrorFeedback(fl.TopK(0.5)),
]


def _noise(clients: int, seed: int = 0, device: str = "cpu") -> Noise:
    keys = np.random.default_rng(seed).integers(0, 2**32, (clients, 2))
    return Noise(torch.tensor(keys, device=device))


def _row(code: dict, i: int) -> dict:
    return {name: t[i] for name, t in code.items()}


@given(
    values=st.lists(
        st.one_of(
            st.just(0.0),
            st.floats(-(2.0**99), 2.0**99, width=32),
            st.floats(-(2.0**-99), 2.0**-99, width=32),
        ),
        min_size=1,
        max_size=70,
    ),
    double=st.booleans(),
    which=st.integers(0, len(ALL) - 1),
    seed=st.integers(0, 1000),
)
@settings(max_examples=400, deadline=None)
def test_packing_is_exact_and_as_long_as_counted(values, double, which, seed) -> None:
    q, dtype = ALL[which], torch.float64 if double else torch.float32
    v = torch.tensor([values, values[::-1]], dtype=dtype)
    d, noise = v.shape[1], _noise(2, seed)
    code = q.encode(v, noise)
    sizes = q.size(code, d)
    decoded = q.decode(code, d, dtype, noise)
    assert decoded.shape == v.shape
    assert decoded.dtype == dtype
    for i in range(2):
        data = q.pack(_row(code, i), d)
        assert 8 * len(data) == (sizes if isinstance(sizes, int) else int(sizes[i]))
        back = q.unpack(data, d, dtype)
        one = Noise(noise.keys[i : i + 1])
        again = q.decode({n: t[None] for n, t in back.items()}, d, dtype, one)
        assert torch.equal(again[0], decoded[i])


@pytest.mark.parametrize(
    "q", [fl.QSGD(1), fl.QSGD(2), fl.QSGD(4), fl.RandK(0.3), fl.RandK(3)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unbiased_with_bounded_variance(q: Compressor, dtype: torch.dtype) -> None:
    """The mean over 40,000 draws within five standard errors in each of 10 coordinates: a false
    alarm in about one of 170,000 seeds."""
    n, d = 40_000, 10
    v = torch.tensor(np.random.default_rng(1).normal(size=d) ** 3, dtype=dtype)
    noise = _noise(n)
    rows = v.expand(n, d).contiguous()
    found = q.decode(q.encode(rows, noise), d, dtype, noise).double()
    error = (found.mean(0) - v.double()).abs()
    spread = found.std(0) / math.sqrt(n)
    assert bool((error <= 5 * spread + 1e-7).all())
    variance = ((found - v.double()) ** 2).sum(1).mean()
    norm = float(v.double() @ v.double())
    if isinstance(q, fl.QSGD):
        assert float(variance) <= min(d / q.s**2, math.sqrt(d) / q.s) * norm
    else:
        assert float(variance) == pytest.approx((d / 3 - 1) * norm, rel=0.05)


def test_qsgd_takes_the_two_levels_beside_a_coordinate() -> None:
    v = torch.tensor([[3.0, 0.0, -4.0]]).expand(500, 3).contiguous()
    q = fl.QSGD(levels=2)  # levels 0, 2.5 and 5 of the norm 5
    found = q.decode(q.encode(v, _noise(500)), 3, v.dtype, _noise(500))
    assert set(found[:, 0].tolist()) == {2.5, 5.0}
    assert set(found[:, 1].tolist()) == {0.0}
    assert set(found[:, 2].tolist()) == {-2.5, -5.0}


def test_qsgd_special_vectors() -> None:
    q, noise = fl.QSGD(2), _noise(1)

    def through(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        v = torch.tensor([values], dtype=dtype)
        return q.decode(q.encode(v, noise), len(values), dtype, noise)[0]

    assert through([0.0, 0.0]).tolist() == [0.0, 0.0]
    assert through([0.0, -7.0]).tolist() == [0.0, -7.0]
    assert through([3e38, 0.0]).tolist() == pytest.approx([3e38, 0.0])
    assert through([1e-42, 0.0]).tolist() == [0.0, 0.0]  # too small for float32's range
    assert through([1e-42, 0.0], torch.float64).tolist() == pytest.approx([1e-42, 0.0])
    assert bool(torch.isnan(through([float("nan"), 1.0])).all())
    assert bool(torch.isnan(through([float("inf"), 1.0])).any())


def test_fixed_width_is_the_papers_count() -> None:
    d = 1001
    v = torch.randn(1, d)
    for s, width in ((1, 2), (3, 3), (7, 4), (15, 5)):
        q = fl.QSGD(levels=s)
        assert q.width == width
        assert q.size(q.encode(v, _noise(1)), d) == 32 + 8 * math.ceil(d * width / 8)
    assert fl.QSGD(2).nominal_bits(d, torch.float32) == 2 * d
    sparse = torch.zeros(1, d)
    sparse[0, ::100] = 1.0
    elias, fixed = fl.QSGD(2, wire="elias"), fl.QSGD(2)
    code = elias.encode(sparse, _noise(1))
    assert int(elias.size(code, d)) < fixed.size(code, d) / 5


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_b_bits_take_b_plus_one_per_coordinate(bits: int) -> None:
    q, d = fl.QSGD(bits), 8000
    code = q.encode(torch.randn(1, d), _noise(1))
    assert 8 * len(q.pack(_row(code, 0), d)) == 32 + (bits + 1) * d
    assert q.nominal_bits(d, torch.float32) == bits * d


def test_the_equal_budget_of_the_fedglomo_paper_is_six_bits_against_five() -> None:
    task = fl.problems.random_quadratics(clients=4, dim=800, dtype=torch.float32)
    up = []
    for method in (fl.FedGLOMO(0.1, compressor=fl.QSGD(2)), fl.FedPAQ(0.1, compressor=fl.QSGD(4))):
        run = fl.train(task, method, rounds=1, steps=2)
        up.append((run.ledger.up, run.history.last("nominal_up")))
    (glomo, nominal), (paq, same) = up
    assert nominal == same == 4 * 4 * 800
    assert glomo == 4 * 2 * (32 + 3 * 800)
    assert paq == 4 * (32 + 5 * 800)


def test_topk_keeps_the_largest_and_error_feedback_sends_the_rest_later() -> None:
    v = torch.tensor([[1.0, -5.0, 2.0, 0.5]])
    q = fl.TopK(2)
    assert q.decode(q.encode(v, _noise(1)), 4, v.dtype, _noise(1)).tolist() == [
        [0.0, -5.0, 2.0, 0.0]
    ]
    # a constant gradient of (1, 0.6): top-1 with feedback sends each coordinate's share in time
    task = fl.problems.quadratics(np.zeros((1, 2, 2)), [[1.0, 0.6]], [0.0, 0.0])
    run = fl.train(task, fl.FedAvg(lr=1.0, compressor=fl.ErrorFeedback(fl.TopK(1))), rounds=40)
    torch.testing.assert_close(run.x / 40, torch.tensor([1.0, 0.6]).double(), rtol=0.05, atol=0)
    plain = fl.train(task, fl.FedAvg(lr=1.0, compressor=fl.TopK(1)), rounds=40)
    assert plain.x.tolist() == [40.0, 0.0]


def test_noise_is_the_same_on_every_device_in_every_company(device: str) -> None:
    keys = _noise(5).keys
    together = hashed(keys.to(device), 300_000, torch.float32).cpu()
    alone = torch.cat([hashed(keys[i : i + 1], 300_000, torch.float32) for i in range(5)])
    assert torch.equal(together, alone)
    assert torch.equal(hashed(keys, 300_000, torch.float64).float(), alone)


def test_hashed_numbers_look_uniform_and_independent() -> None:
    """Moments and correlations within five standard errors."""
    n = 200_000
    u = hashed(_noise(3).keys, n, torch.float64) - 0.5
    assert float(u.abs().max()) < 0.5
    assert float(u.mean().abs()) < 5 * math.sqrt(1 / 12 / (3 * n))
    assert abs(float((u**2).mean()) - 1 / 12) < 5 * math.sqrt(1 / 180 / (3 * n))
    for a, b in ((u[0], u[1]), (u[0, :-1], u[0, 1:]), (u[0, :-2], u[0, 2:]), (u[1], u[2])):
        assert abs(float((a * b).mean())) < 5 / 12 / math.sqrt(len(a))


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(41, 60)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_bits_come_back(fields: list[tuple[int, int]]) -> None:
    values, widths = (np.array([f[k] for f in fields], dtype=np.int64) for k in (0, 1))
    reader = BitReader(write_bits(values, widths))
    assert [reader.take(int(w)) for w in widths] == values.tolist()
    with pytest.raises(ValueError, match="ends too early"):
        reader.take(64)


@given(st.lists(st.integers(1, 2**30), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_elias_gamma_comes_back(numbers: list[int]) -> None:
    values = np.array(numbers)
    reader = BitReader(write_bits(values, gamma_width(values)))
    assert [reader.gamma() for _ in numbers] == numbers
    assert gamma_width(np.array([1, 2, 3, 4, 8])).tolist() == [1, 3, 3, 5, 7]
    assert (
        read_fixed(write_bits(values, np.full(len(values), 31)), 31, len(values)).tolist()
        == numbers
    )


def test_a_compressor_of_ones_own_is_two_functions() -> None:
    class Signs(Compressor):
        """The mean size and a sign a coordinate."""

        def encode(self, v, noise):
            return {"size": v.abs().mean(-1, keepdim=True), "sign": v.sign().to(torch.int8)}

        def decode(self, code, d, dtype, noise):
            return code["size"] * code["sign"]

    run = fl.train(
        fl.problems.random_quadratics(dim=6),
        fl.FedAvg(lr=0.1, compressor=Signs()),
        rounds=3,
        engine="vmap",
    )
    assert run.ledger.up == 3 * 10 * (64 + 8 * 6)
    with pytest.raises(fl.FairleadError, match="add unpack"):
        fl.train(
            fl.problems.random_quadratics(),
            fl.FedAvg(lr=0.1, compressor=Signs()),
            rounds=1,
            engine="debug",
        )


def test_names_and_wrong_settings() -> None:
    assert parse("qsgd:3:elias") == fl.QSGD(3, wire="elias")
    assert parse("randk:100") == fl.RandK(100)
    assert parse("bfloat16") == fl.BFloat16()
    for text, message in (
        ("qsdg:2", "did you mean 'qsgd'"),
        ("qsgd:x", "cannot parse the compressor"),
        ("topk:0.1:0.2", "cannot parse the compressor"),
    ):
        with pytest.raises(fl.FairleadError, match=message):
            parse(text)
    for bits in (0, 15):
        with pytest.raises(fl.FairleadError, match="1 to 14 bits"):
            fl.QSGD(bits)
    with pytest.raises(fl.FairleadError, match=r"k is 1\.5"):
        fl.TopK(1.5).encode(torch.ones(1, 4), _noise(1))
    for method in (fl.FedGLOMO, fl.FedCOMGATE):
        with pytest.raises(fl.FairleadError, match="needs an unbiased compressor"):
            method(lr=0.1, compressor=fl.TopK(0.1))
