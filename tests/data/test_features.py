"""Feature skew: every client its own rotation or noise, the same for a seed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fairlead as fl
from fairlead.data import features, splits

KINDS = [torch.uint8, torch.float32, torch.float64, torch.float16]


def _pictures(n: int = 12, dtype: torch.dtype = torch.uint8, *shape: int) -> Tensor:
    rng = np.random.default_rng(1)
    values = torch.from_numpy(rng.integers(0, 256, (n, *(shape or (7, 7)))))
    return values.to(dtype) if dtype == torch.uint8 else (values / 256).to(dtype)


def _thirds(n: int = 12) -> splits.Split:
    return splits.iid(np.zeros(n), 3, seed=5)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", [(7, 7), (3, 6, 6), (1, 1, 1)])
def test_quarter_turns_are_exact(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, split = _pictures(12, dtype, *shape), _thirds()
    for angles in ([0, 90, 180], [-90, 360, 270], [450, -180, 720]):
        turned = features.rotate(x, split, angles=angles)
        assert turned.dtype == dtype
        for own, angle in zip(split, angles, strict=True):
            assert torch.equal(turned[own], torch.rot90(x[own], angle // 90, (-2, -1)))


@pytest.mark.parametrize("shape", [(9, 14), (2, 9, 14)])
def test_rotation_is_bilinear_interpolation(shape: tuple[int, ...]) -> None:
    x, split = _pictures(3, torch.float64, *shape), splits.Split.of([[0], [1], [2]])
    angles = [17.0, -40.0, 123.0]
    ours = features.rotate(x, split, angles=angles).reshape(3, -1, 9, 14)
    rad = torch.deg2rad(torch.tensor(angles, dtype=torch.float64))
    cos, sin = rad.cos(), rad.sin()
    rows = [torch.stack([cos, -sin * 9 / 14, 0 * cos], 1), torch.stack([sin * 14 / 9, cos, 0 * cos], 1)]  # fmt: skip
    grid = torch.nn.functional.affine_grid(torch.stack(rows, 1), [*ours.shape], align_corners=False)
    other = torch.nn.functional.grid_sample(
        x.reshape(ours.shape), grid, padding_mode="zeros", align_corners=False
    )
    assert (ours - other).abs().max() < 0.02  # coordinates count in 1/256 of a pixel


def test_turning_back_and_what_comes_from_outside() -> None:
    disc = torch.hypot(*torch.meshgrid(*[torch.linspace(-1, 1, 41)] * 2, indexing="ij"))
    x, split = (1 - disc).clamp(min=0)[None], splits.Split.of([[0]])
    assert (features.rotate(x, split, angles=[33]) - x).abs().max() < 0.03  # round stays round
    corner = features.rotate(torch.ones(1, 20, 20), split, angles=[45], fill=-5.0)
    assert corner[0, 0, 0] == -5
    assert corner[0, 10, 10] == 1
    bytes_ = features.rotate(torch.full((1, 20, 20), 200, dtype=torch.uint8), split, angles=[45])
    assert set(bytes_[0, 8:12, 8:12].flatten().tolist()) == {200}


@given(angle=st.floats(-720, 720), size=st.integers(1, 9), value=st.integers(0, 255))
@settings(max_examples=50, deadline=None)
def test_no_rotation_leaves_the_range_of_the_image(angle, size, value) -> None:
    x = torch.full((1, size, size + 1), value, dtype=torch.uint8)
    turned = features.rotate(x, splits.Split.of([[0]]), angles=[angle], fill=value)
    assert torch.equal(turned, x)


@pytest.mark.parametrize("dtype", KINDS)
def test_seeds_and_clients_decide(dtype: torch.dtype) -> None:
    x, split = _pictures(12, dtype), _thirds()
    for skew in (
        lambda seed: features.rotate(x, split, 60.0, seed),
        lambda seed: features.noise(x, split, 0.3, seed),
    ):
        one, again, other = skew(1), skew(1), skew(2)
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
        assert one.dtype == dtype
    assert torch.equal(x, _pictures(12, dtype))  # the given images stay


def test_a_client_turns_all_its_images_alike_and_others_differently() -> None:
    x = _pictures(1).repeat(12, 1, 1)
    split = _thirds()
    turned = features.rotate(x, split, max_angle=80.0)
    heads = [turned[own[0]] for own in split]
    assert all(torch.equal(turned[j], head) for own, head in zip(split, heads, strict=True) for j in own)  # fmt: skip
    assert not torch.equal(heads[0], heads[1])


def test_noise_has_the_given_level() -> None:
    split = splits.Split.of([range(50), range(50, 100)])
    x = torch.zeros(100, 40, 40)
    noisy = features.noise(x, split, [0.0, 2.0])
    assert torch.equal(noisy[:50], x[:50])
    assert abs(float(noisy[50:].mean())) < 5 * 2 / 80000**0.5
    assert float(noisy[50:].std()) == pytest.approx(2.0, rel=0.02)
    gray = torch.full((100, 40, 40), 128, dtype=torch.uint8)
    loud = features.noise(gray, split, [0.1, 10.0])
    assert float(loud[:50].double().std()) == pytest.approx(25.5, rel=0.02)
    assert {int(loud[50:].min()), int(loud[50:].max())} == {0, 255}


def test_drawn_levels_are_uniform_up_to_sigma() -> None:
    split = splits.iid(np.zeros(200), 200)
    levels = features.noise(torch.zeros(200, 30, 30), split, 0.5).flatten(1).std(1)
    assert 0.45 < float(levels.max()) < 0.55
    assert float(levels.mean()) == pytest.approx(0.25, abs=0.045)


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x, split = _pictures(30), splits.iid(np.zeros(30), 7)
    whole = features.rotate(x, split, 90.0), features.noise(x, split, 0.2)
    monkeypatch.setattr(features, "_PIXELS", 100)
    assert torch.equal(whole[0], features.rotate(x, split, 90.0))
    assert torch.equal(whole[1], features.noise(x, split, 0.2))


def test_the_same_bytes_on_every_machine() -> None:
    x, split = _pictures(12), _thirds()
    turned, noisy = features.rotate(x, split, 45.0, seed=3), features.noise(x, split, 0.2, seed=3)
    found = [hashlib.sha256(t.numpy().tobytes()).hexdigest()[:16] for t in (turned, noisy)]
    assert found == ["07d65958cc7ad23b", "ae2da7fce801f41e"]


def test_arrays_stay_arrays_and_nobodys_images_stay() -> None:
    x = _pictures(10).numpy()
    split = splits.by_id([0, 0, 0, 1, 2, 2, 2, 2, 3, 3], minimum=3)
    for out in (features.rotate(x, split, angles=[90, 90]), features.noise(x, split, [0.5, 0.5])):
        assert isinstance(out, np.ndarray)
        assert out.dtype == np.uint8
        assert np.array_equal(out[[3, 8, 9]], x[[3, 8, 9]])
        assert not np.array_equal(out[0], x[0])


def test_many_clients() -> None:
    x = torch.zeros(100_000, 4, 4, dtype=torch.uint8)
    split = splits.iid(np.zeros(100_000), 50_000)
    assert features.rotate(x, split, 30.0).shape == x.shape
    assert int(features.noise(x, split, 0.1).max()) > 30


@pytest.mark.filterwarnings("ignore:the split has sample 0 more than once")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, s: features.rotate(x, s), "give one of them"),
        (lambda x, s: features.rotate(x, s, 10.0, angles=[1, 2, 3]), "give one of them"),
        (lambda x, s: features.rotate(x, s, -10.0), "max_angle is -10"),
        (lambda x, s: features.rotate(x, s, angles=[1, 2]), r"shape \(2,\) for 3 clients"),
        (lambda x, s: features.rotate(x, s, 10.0, seed=-1), "seed is -1"),
        (lambda x, s: features.noise(x, s, float("nan")), "sigma is nan"),
        (lambda x, s: features.noise(x, s, [0.1, -0.1, 0.2]), "sigma holds -0.1"),
        (lambda x, s: features.noise(x[0], s, 0.1), r"shape \(7, 7\)"),
        (lambda x, s: features.noise(x.long(), s, 0.1), "int64"),
        (lambda x, s: features.noise(x[:4], s, 0.1), "but there are 4"),
        (lambda x, s: features.noise(x, splits.Split.of([[0], [0]]), 0.1), "more than one client"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(call, message) -> None:
    with pytest.raises(fl.FairleadError, match=message):
        call(_pictures(), _thirds())
