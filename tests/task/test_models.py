"""The papers' models: sizes, shapes, weights by seed, and gradients of many clients at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import fairlead as fl
from fairlead.gradients.oracle import Gradients
from fairlead.task import models

IMAGES = {"femnist_cnn": (1, 28, 28), "cifar_cnn": (3, 32, 32), "vgg11": (3, 32, 32), "resnet8": (3, 32, 32)}  # fmt: skip


def _task(make, shape: tuple[int, ...], classes: int = 10, device: str = "cpu") -> fl.Task:
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(12, *shape)))
    y = torch.tensor(rng.integers(0, classes, 12))
    return fl.Task(
        make, "cross_entropy", (x, y), [range(4), range(4, 8), range(8, 12)],
        dtype=torch.float64, device=device,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (models.vgg11(), 9_750_922),
        (models.resnet8(), 78_042),
        (models.cifar_cnn(), 1_626_442),
        (models.femnist_cnn(), 832 + 51_264 + 1_606_144 + 31_806),
        (models.mlp(784, 300, 300, 10), 328_810),
        (models.softmax_regression(784, 62), 48_670),
    ],
)
def test_parameter_counts(make, parameters: int) -> None:
    assert models.count(make) == parameters


def test_the_last_layers_have_the_sizes_of_the_paper() -> None:
    """FedPVR's variance-reduced parts: three layers of VGG-11, one of ResNet-8."""
    vgg, resnet = models.vgg11()(), models.resnet8()()
    linear = [m for m in vgg.modules() if isinstance(m, nn.Linear)]
    assert sum(p.numel() for m in linear for p in m.parameters()) == 530_442
    assert sum(p.numel() for p in list(resnet.modules())[-1].parameters()) == 650


@pytest.mark.parametrize("name", ["vgg11", "resnet8"])
def test_gradients_of_many_clients_are_those_of_one_at_a_time(name: str, device: str) -> None:
    task = _task(getattr(models, name)(), IMAGES[name], device=device)
    x, buffers = task.start(0)
    points = x.expand(2, -1) * torch.tensor([[1.0], [0.9]], dtype=x.dtype, device=device)
    index = torch.arange(2, device=device)[:, None]
    block = task.samples(torch.arange(2, device=device), index)
    together = Gradients(task).stacked(points, block, None, buffers.expand(2, -1))[0]
    alone = torch.stack([Gradients(task).plain(points[k], tuple(t[k] for t in block), buffers)[0] for k in range(2)])  # fmt: skip
    assert float(alone.abs().max()) > 1e-3
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["none", "group", "batch"])
@pytest.mark.parametrize(
    "name", ["femnist_cnn", "cifar_cnn", "resnet8", pytest.param("vgg11", marks=pytest.mark.slow)]
)
def test_every_norm_runs_and_moves_its_statistics(name: str, norm: str) -> None:
    task = _task(getattr(models, name)(norm=norm), IMAGES[name])
    x, buffers = task.start(0)
    block = task.samples(torch.arange(2), torch.arange(2).expand(2, 2))
    g, moved = Gradients(task).stacked(x, block, None, buffers.expand(2, -1))
    assert torch.isfinite(g).all()
    assert (buffers.numel() > 0) == (norm == "batch")
    if norm == "batch":
        assert not torch.equal(moved[0], moved[1])
        assert not torch.equal(moved[0], buffers)


def test_a_norm_that_does_not_exist_is_a_sentence() -> None:
    with pytest.raises(fl.FairleadError, match="did you mean 'batch'"):
        models.resnet8(norm="batches")()


@pytest.mark.parametrize("text", [False, True])
def test_weights_come_from_the_seed_and_not_from_the_device(text: bool, device: str) -> None:
    make = models.char_transformer(9, 6, 8, 2, 1) if text else models.resnet8()
    x = torch.zeros(2, 6, dtype=torch.uint8) if text else torch.zeros(2, 3, 32, 32)
    states = []
    for place in ("cpu", device):
        torch.rand(3)  # whatever was drawn before does not matter
        data = (x, torch.tensor([0, 1]))
        task = fl.Task(make, "cross_entropy", data, [[0], [1]], device=place)
        states.append(task.start(3)[0].cpu())
        assert not torch.equal(states[0], task.start(4)[0].cpu())
    assert torch.equal(*states)


@pytest.mark.parametrize("make", [models.char_gru(7, 3, 5), models.char_transformer(7, 6, 8, 2, 2)])
def test_text_models_read_codes_and_agree_across_engines(make) -> None:
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.integers(0, 7, (20, 6)), dtype=torch.uint8)
    y = torch.tensor(rng.integers(0, 7, 20))
    task = fl.Task(make, "cross_entropy", (x, y), [range(9), range(9, 20)], dtype=torch.float64)
    runs = [fl.train(task, fl.Scaffold(lr=0.2), rounds=3, batch_size=4, engine=e).x
            for e in ("vmap", "loop", "debug")]  # fmt: skip
    for other in runs[1:]:
        torch.testing.assert_close(runs[0], other, rtol=0, atol=1e-10)


def test_the_gated_unit_is_that_of_torch() -> None:
    """torch's own GRU with the same weights, in its order: reset, update, new."""
    model, real = models.char_gru(5, 3, 4)(), nn.GRU(3, 4, batch_first=True)
    codes = torch.tensor([[0, 4, 2, 2], [1, 3, 0, 4]], dtype=torch.uint8)
    with torch.no_grad():
        real.weight_ih_l0.copy_(model.from_input.weight)
        real.bias_ih_l0.copy_(model.from_input.bias)
        real.weight_hh_l0.copy_(model.from_hidden.weight)
        real.bias_hh_l0.copy_(model.from_hidden.bias)
        expected = model.head(real(model.embed(codes.long()))[0][:, -1])
        torch.testing.assert_close(model(codes), expected)


def test_the_transformer_looks_backwards_only() -> None:
    layer = models.Attention(8, 2)
    x = torch.randn(1, 5, 8)
    other = x.clone()
    other[:, 3:] += 1.0
    with torch.no_grad():
        torch.testing.assert_close(layer(x)[:, :3], layer(other)[:, :3])
        assert not torch.allclose(layer(x)[:, 3:], layer(other)[:, 3:])


@torch.no_grad()
def test_vgg11_without_normalization_starts_with_a_signal() -> None:
    """By torch's own weights what reaches the last layer hardly depends on the image."""
    torch.manual_seed(0)
    x = torch.randn(64, 3, 32, 32)
    seen = {he: models.vgg11(he=he)()[:-1](x).std(0).mean() for he in (True, False)}
    assert seen[True] > 10 * seen[False]
    torch.manual_seed(1)
    default = models.vgg11()()(x)
    torch.manual_seed(1)
    assert torch.equal(default, models.vgg11(he=True)()(x))
    assert default.abs().max() < 1
    assert models.count(models.vgg11(dropout=0.5)) == models.count(models.vgg11())
    assert sum(isinstance(m, torch.nn.Dropout) for m in models.vgg11(dropout=0.5)()) == 2


def test_a_trained_model_takes_inputs_as_they_are_in_the_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 255, (40, 1, 6, 6), np.uint8))
    y = torch.from_numpy(rng.integers(0, 3, 40))
    task = fl.Task(
        fl.models.mlp(36, 5, 3), "cross_entropy", (x, y), [range(20), range(20, 40)], test=(x, y),
        transform=fl.Images.of(x, flip=True),
    )  # fmt: skip
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=3, steps=2, batch_size=8)
    model = run.model()
    accuracy = float((model(x).argmax(1) == y).double().mean())
    assert accuracy == pytest.approx(run.history.last("accuracy"))
    plain = run.model(transform=False)
    assert torch.equal(plain(task.transform(x, torch.float32)), model(x))
    assert "Images(mean=" in repr(model)
    with pytest.raises(fl.FairleadError, match="uint8"):
        model(task.transform(x, torch.float32))  # normalised twice would be silently wrong
    run.save(tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["fairlead"])
        plain.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    assert about["transform"]["mean"] == task.transform.mean
    assert about["transform"]["std"] == task.transform.std
    best = fl.BestModel("accuracy")
    fl.train(task, fl.FedAvg(lr=0.1), rounds=1, callbacks=[best])
    assert best.model()(x).shape == (40, 3)
