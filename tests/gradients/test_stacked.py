"""Models on stacked parameters: outputs and gradients are those of one client after another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import fairlead as fl
from fairlead.gradients.form import ANY, Form
from fairlead.gradients.oracle import Gradients
from fairlead.gradients.stacked import dense, stacked_model, tiles, triton_dense, triton_pool, twice
from fairlead.gradients.stacked.conv import conv2d_each, uses_triton
from fairlead.gradients.stacked.dense import dense_each
from fairlead.gradients.stacked.norm import group_norm_each
from fairlead.gradients.stacked.pool import relu_max_pool_each
from fairlead.task import models
from fairlead.task.layout import Layout

TRITON = find_spec("triton") is not None
NUMPY = tuple(map(int, np.__version__.split(".")[:2]))
CLIENTS = 2


@contextmanager
def exact() -> Iterator[None]:
    """Convolutions in float32 multiply in float32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


@contextmanager
def short_products(yes: bool = True) -> Iterator[None]:
    """Products in float32 may be in TF32, or not."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = yes
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def case(
    make: Callable[[], nn.Module], shape: tuple[int, ...], batch: int = 4, clients: int = CLIENTS
) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A model in float64, the parameters of some clients (S, d), and a batch for each."""
    torch.manual_seed(0)
    model = make().double()
    flat = Layout(model).flatten(model, torch.float64)[0]
    x = flat + 0.1 * torch.randn(clients, len(flat), dtype=torch.float64)
    inputs = torch.randn(clients, batch, *shape, dtype=torch.float64)
    return model, x, inputs, torch.randint(0, 3, (clients, batch))


def stacked(layout: Layout, x: Tensor) -> dict[str, Tensor]:
    """The parameters of (S, d) by name, as views."""
    parts = zip(layout.parameters, x.split([p.size for p in layout.parameters], 1), strict=True)
    return {p.name: t.unflatten(1, p.shape) for p, t in parts}


def losses(output: Tensor, target: Tensor) -> Tensor:
    """A number a sample, which all outputs move."""
    return F.cross_entropy(output.flatten(1), target, reduction="none")


def one_by_one(
    model: nn.Module, x: Tensor, inputs: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """What vmap gives."""
    layout = Layout(model)

    def loss(x: Tensor, inputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        output = functional_call(model, layout.views(x), (inputs,))
        return losses(output, target).mean(), output

    g, output = vmap(grad(loss, has_aux=True))(x, inputs, target)
    return output, g


def together(model: nn.Module, x: Tensor, inputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """What the model on stacked parameters gives."""
    layout, run = Layout(model), stacked_model(model)
    assert run is not None
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        output = run(stacked(layout, leaf), inputs)
        each = losses(output.flatten(0, 1), target.flatten()).unflatten(0, target.shape)
        (g,) = torch.autograd.grad(each.mean(1).sum(), leaf)
    return output.detach(), g


MODELS = {
    "softmax": (models.softmax_regression(12, 3, zero=False), (12,)),
    "softmax on images": (models.softmax_regression(48, 3, zero=False), (3, 4, 4)),
    "mlp": (models.mlp(12, 7, 5, 3), (3, 2, 2)),
    "femnist_cnn": (models.femnist_cnn(5, side=8), (1, 8, 8)),
    "femnist_cnn with norms": (models.femnist_cnn(5, "group", side=8), (1, 8, 8)),
    "cifar_cnn": (models.cifar_cnn(4), (3, 32, 32)),
    "vgg11": (models.vgg11(4), (3, 32, 32)),
    "resnet8": (models.resnet8(4), (3, 16, 16)),
    "resnet8 without norms": (models.resnet8(4, norm="none"), (3, 16, 16)),
}

CONVOLUTIONS = {
    "3 × 3": ((16, 16, 3, 1, 1), (16, 8, 8)),
    "3 × 3, stride 2": ((16, 32, 3, 2, 1), (16, 8, 8)),
    "3 × 3, stride 2, odd sides": ((5, 7, 3, 2, 1), (5, 9, 7)),
    "3 × 3 without padding": ((3, 8, 3), (3, 7, 6)),
    "3 × 3 of few channels": ((3, 16, 3, 1, 1), (3, 8, 8)),
    "5 × 5 of one channel": ((1, 20, 5, 1, 2), (1, 9, 9)),
    "1 × 1": ((6, 9, 1), (6, 5, 5)),
    "1 × 1, stride 2": ((16, 32, 1, 2), (16, 8, 8)),
    "1 × 1, stride 3": ((16, 8, 1, 3), (16, 8, 8)),
    "rectangular": ((4, 6, (3, 5), (2, 1), (0, 2)), (4, 8, 9)),
    "even": ((4, 6, (2, 4), (1, 3), (1, 1)), (4, 7, 8)),
    "large stride": ((4, 6, 2, 3, 1), (4, 8, 8)),
    "many channels": ((24, 72, 3, 1, 1), (24, 4, 4)),
    "whole taps": ((64, 40, 3, 2, 1), (64, 5, 4)),
    "large tiles": ((128, 136, 3, 1, 1), (128, 4, 3)),
}

WIDE = {"256 columns": ((256, 256, 1), (256, 8, 6)), "64 rows": ((64, 136, 3, 1, 1), (64, 5, 4))}
"""What has tiles of its own on a GPU with much shared memory."""


def products(model: nn.Module, x: Tensor, inputs: Tensor, target: Tensor, v: Tensor) -> Tensor:
    """∇²f(x)·v by layers."""
    layout, run = Layout(model), stacked_model(model)
    assert run is not None
    leaf = x.detach().requires_grad_()
    with torch.enable_grad(), twice():
        output = run(stacked(layout, leaf), inputs)
        each = losses(output.flatten(0, 1), target.flatten()).unflatten(0, target.shape)
        (g,) = torch.autograd.grad(each.mean(1).sum(), leaf, create_graph=True)
        return torch.autograd.grad((g * v).sum(), leaf)[0]


def products_one_by_one(
    model: nn.Module, x: Tensor, inputs: Tensor, target: Tensor, v: Tensor
) -> Tensor:
    """What vmap gives."""
    layout = Layout(model)

    def product(x: Tensor, inputs: Tensor, target: Tensor, v: Tensor) -> Tensor:
        def loss(x: Tensor) -> Tensor:
            return losses(functional_call(model, layout.views(x), (inputs,)), target).mean()

        return grad(lambda x: grad(loss)(x) @ v)(x)

    return vmap(product)(x, inputs, target, v)


@pytest.mark.parametrize("name", MODELS)
def test_products_with_hessians_of_models_as_vmap(name: str) -> None:
    make, shape = MODELS[name]
    setting = case(make, shape, batch=2)
    v = torch.randn_like(setting[1])
    torch.testing.assert_close(
        products(*setting, v), products_one_by_one(*setting, v), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_products_with_hessians_of_convolutions_as_vmap(name: str) -> None:
    arguments, shape = CONVOLUTIONS[name]

    def model() -> nn.Module:  # of which all gradients depend on the weights of both
        second = nn.Conv2d(*arguments)
        return nn.Sequential(nn.Conv2d(shape[0], shape[0], 1), nn.Tanh(), second, nn.Tanh())

    setting = case(model, shape)
    v = torch.randn_like(setting[1])
    torch.testing.assert_close(
        products(*setting, v), products_one_by_one(*setting, v), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("name", MODELS)
def test_models_as_vmap(name: str) -> None:
    make, shape = MODELS[name]
    setting = case(make, shape, batch=2)
    for ours, theirs in zip(together(*setting), one_by_one(*setting), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_as_vmap(name: str, bias: bool) -> None:
    arguments, shape = CONVOLUTIONS[name]

    # a convolution before it, so that the gradient of its input matters too
    def model() -> nn.Module:
        second = nn.Conv2d(*arguments, bias=bias)
        return nn.Sequential(nn.Conv2d(shape[0], shape[0], 1), second, nn.Tanh())

    setting = case(model, shape)
    for ours, theirs in zip(together(*setting), one_by_one(*setting), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


LAYERS: dict[str, list[nn.Module]] = {
    "pooling": [nn.MaxPool2d(2), nn.Sigmoid()],
    "pooling that drops a row": [nn.MaxPool2d((2, 3))],
    "pooling of windows that overlap": [nn.MaxPool2d(3, 2, 1), nn.GELU()],
    "signs and pooling": [nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 2)],
    "pooling and signs": [nn.MaxPool2d((3, 2)), nn.ReLU(), nn.ReLU()],
    "pooling of norms": [nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(2)],
    "signs and pooling of windows that overlap": [nn.ReLU(), nn.MaxPool2d(3, 2, 1)],
    "means": [nn.AvgPool2d(2)],
    "means of windows that overlap": [nn.AvgPool2d(3, 2, 1, count_include_pad=False)],
    "a mean of all": [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)],
    "a linear layer on rows": [nn.Linear(7, 4), nn.Identity(), nn.GELU("tanh")],
    "norms of vectors": [nn.Flatten(), nn.Linear(6 * 49, 8), nn.GroupNorm(4, 8), nn.ReLU()],
    "norms without weights": [nn.GroupNorm(3, 6, affine=False), nn.ReLU()],
    "norms and signs": [nn.GroupNorm(6, 6), nn.Sequential(nn.ReLU(inplace=True)), nn.Flatten()],
    "same padding": [nn.Conv2d(6, 4, (3, 5), padding="same"), nn.Conv2d(4, 4, 2, padding="valid")],
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_as_vmap(name: str) -> None:
    setting = case(lambda: nn.Sequential(nn.Conv2d(3, 6, 1), *LAYERS[name]), (3, 7, 7))
    for ours, theirs in zip(together(*setting), one_by_one(*setting), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_linear_layers_of_odd_sides() -> None:
    def model() -> nn.Module:
        hidden = nn.Linear(13, 9, bias=False)
        return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), hidden, nn.ReLU(), nn.Linear(9, 8))

    for shape in ((7,), (3, 7)):
        setting = case(model, shape)
        for ours, theirs in zip(together(*setting), one_by_one(*setting), strict=True):
            assert ours.shape == theirs.shape
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
        v = torch.randn_like(setting[1])
        torch.testing.assert_close(
            products(*setting, v), products_one_by_one(*setting, v), rtol=1e-9, atol=1e-9
        )


def test_the_first_of_equals_takes_the_gradient() -> None:
    setting = case(lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.MaxPool2d(2)), (1, 4, 4))
    model, x, inputs, target = setting
    inputs = inputs.sign()
    for ours, theirs in zip(
        together(model, x, inputs, target), one_by_one(model, x, inputs, target), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    image = torch.ones(1, 1, 2, 2, 1, dtype=torch.float64, requires_grad=True)
    run = stacked_model(nn.MaxPool2d(2))
    assert run is not None
    (g,) = torch.autograd.grad(run({}, image.permute(0, 1, 4, 2, 3)).sum(), image)
    assert g.flatten().tolist() == [1.0, 0.0, 0.0, 0.0]


POOLS = {
    "2 × 2": ((6, 4, 8), (2, 2)),
    "2 × 2 that drops a row and a column": ((5, 7, 6), (2, 2)),
    "3 × 3 that drops rows": ((8, 6, 3), (3, 3)),
    "2 × 1": ((5, 4, 20), (2, 1)),
    "all at once": ((3, 2, 1), (3, 2)),
    "many channels": ((4, 5, 136), (2, 2)),
    "many windows": ((36, 36, 16), (2, 2)),
}


def check_pool(
    name: str, relu: bool, biased: bool, dtype: torch.dtype, device: str, bound: float
) -> None:
    """Pooling of values of which many are equal: exactly torch's, but for the order of sums over pixels."""
    (h, w, c), kernel = POOLS[name]
    torch.manual_seed(1)
    x = torch.randn(2, 7, h, w, c).mul(2).round().div(2)
    x[0, 1, 0, 0], x[1, 0, 1, 0, 0], x[1, 2] = torch.nan, torch.inf, -torch.inf
    values = [x.to(dtype)] + ([torch.randn(2, c).to(dtype)] if biased else [])
    g = torch.randn(2, 7, h // kernel[0], w // kernel[1], c).to(dtype)

    def theirs(x: Tensor, bias: Tensor | None = None) -> Tensor:
        x = x if bias is None else x + bias[:, None, None, None]
        x = (x.relu() if relu else x).permute(0, 1, 4, 2, 3)
        return torch.stack([F.max_pool2d(images, kernel) for images in x]).permute(0, 1, 3, 4, 2)

    def ours(x: Tensor, bias: Tensor | None = None) -> Tensor:
        return relu_max_pool_each(x, kernel, relu, bias)

    found: list[list[Tensor]] = []
    for place, pool in (("cpu", theirs), (device, ours), (device, ours)):
        leaves = [v.to(place).requires_grad_() for v in values]
        y = pool(*leaves)
        found.append([t.detach().cpu() for t in (y, *torch.autograd.grad(y, leaves, g.to(place)))])
    for at, (true, mine, again) in enumerate(zip(*found, strict=True)):
        if at < 2:
            torch.testing.assert_close(mine, true, rtol=0, atol=0, equal_nan=True)
        else:
            assert off(mine, true.double()) < bound
        assert torch.equal(mine.nan_to_num(), again.nan_to_num())


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("name", POOLS)
def test_pooling_as_torch(name: str, relu: bool, biased: bool) -> None:
    check_pool(name, relu, biased, torch.float32, "cpu", 1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(3), nn.Dropout(), nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(3, 3, 3, dilation=2),
        nn.Conv2d(3, 3, 3, padding_mode="circular"), nn.Flatten(2), nn.MaxPool2d(2, ceil_mode=True),
        nn.AdaptiveAvgPool2d(2), nn.LayerNorm(4), nn.Conv2d(3, 3, 2, padding="same"),
        models.Residual(4, 4, 1, "batch"), nn.Embedding(4, 2),
    ],
    ids=lambda layer: type(layer).__name__,
)  # fmt: skip
def test_unknown_layers_are_refused(layer: nn.Module) -> None:
    assert stacked_model(nn.Sequential(nn.Conv2d(3, 4, 3), layer)) is None


def test_a_model_with_hooks_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    model[1].register_forward_hook(lambda *_: None)
    assert stacked_model(model) is None


def test_a_layer_used_twice() -> None:
    layer = nn.Linear(4, 4)
    setting = case(lambda: nn.Sequential(layer, nn.Tanh(), layer), (4,))
    for ours, theirs in zip(together(*setting), one_by_one(*setting), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", ["none", "group"])
def test_gradients_can_be_recorded(norm: models.Norm) -> None:
    model, *arguments = case(models.resnet8(4, norm=norm), (3, 8, 8), batch=2)
    run = make_fx(lambda *tensors: together(model, *tensors)[1])
    recorded = run(*arguments)
    names = {str(node.target) for node in recorded.graph.nodes}
    assert "fairlead.conv2d_each.default" in names
    fresh = case(models.resnet8(4, norm=norm), (3, 8, 8), batch=2, clients=CLIENTS)[1:]
    torch.testing.assert_close(recorded(*fresh), together(model, *fresh)[1], rtol=0, atol=0)


def test_the_operators_keep_torchs_rules() -> None:
    x = torch.randn(2, 2, 6, 5, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 3, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    op = torch.ops.fairlead.conv2d_each.default
    torch.library.opcheck(op, (x, w, bias, [2, 1], [1, 0]))
    torch.library.opcheck(op, (x, w, None, [1, 1], [0, 0]))
    a = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    for b in (torch.randn(2, 4, 5, dtype=torch.float64).mT, torch.randn(2, 5, 4).double()):
        op = torch.ops.fairlead.product_each.default
        torch.library.opcheck(op, (a, b.requires_grad_()))


def test_gradients_of_dense_layers_lie_as_in_the_parameter_vector() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    found = []
    for y in (torch.ops.fairlead.product_each(x, w.mT), dense_each(x, w), x @ w.mT):
        found.append([y, *torch.autograd.grad(y.square().sum(), (x, w), create_graph=True)])
        again = torch.autograd.grad(sum(g.pow(3).sum() for g in found[-1][1:]), (x, w))
        found[-1] += again
    for ours, theirs, true in zip(*found, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(theirs, true, rtol=1e-12, atol=1e-12)
    assert found[0][2].is_contiguous()
    assert found[1][2].is_contiguous()


def test_runs_in_exact_float32_share_no_products_with_others(monkeypatch) -> None:
    asked: list[str] = []

    def multiply(a: Tensor, b: Tensor, precision: str) -> Tensor:
        asked.append(precision)
        return torch.bmm(a, b)

    monkeypatch.setattr(triton_dense, "multiply", multiply)
    monkeypatch.setattr(dense, "uses_triton", lambda x: True)
    x, y = torch.randn(40, 6), torch.randint(3, (40,))
    split = [range(20), range(20, 40)]
    task = fl.Task(nn.Linear(6, 3), "cross_entropy", (x, y), split, dtype=torch.float32)
    point, buffers = task.start(0)
    block = (x.unflatten(0, (2, 20)), y.unflatten(0, (2, 20)))
    found = []
    for short in (True, False, True, False):
        asked.clear()
        with short_products(short):
            oracle = Gradients(task, Form("stacked", capture=(ANY,)))
            found.append(oracle.stacked(point.expand(2, -1).clone(), block, None, buffers)[0])
        assert set(asked) == ({"tf32"} if short else set())
    for g in found:
        torch.testing.assert_close(g, found[0])


# -- Triton's kernels -------------------------------------------------------------------------------


def off(ours: Tensor, theirs: Tensor) -> float:
    """The relative error, by norms."""
    return float((ours.double().cpu() - theirs).norm() / (theirs.norm() + 1e-300))


def check_conv(name: str, dtype: torch.dtype, device: str, bound: float) -> None:
    """A layer of the table: output, gradients of inputs, weights and biases, and the same again."""
    (c, o, k, *rest), (_, h, w) = {**CONVOLUTIONS, **WIDE}[name]
    stride, padding = (_both(rest[0]) if rest else (1, 1)), (_both(rest[1]) if rest[1:] else (0, 0))
    torch.manual_seed(1)
    shapes = (2, 3, h, w, c), (2, o, c, *_both(k)), (2, o)
    values = [torch.randn(shape).to(dtype) for shape in shapes]
    g = None
    found: list[list[Tensor]] = []
    with exact():
        for place, kind in (("cpu", torch.float64), (device, dtype), (device, dtype)):
            leaves = [v.to(place, kind).requires_grad_() for v in values]
            assert uses_triton(leaves[0]) == (kind == dtype)
            y = conv2d_each(leaves[0], leaves[1], leaves[2], stride, padding)
            g = torch.randn(y.shape).to(dtype) if g is None else g
            gradients = torch.autograd.grad(y, leaves, g.to(place, kind))
            found.append([y.detach(), *gradients])
    for true, ours, again in zip(*found, strict=True):
        assert off(ours, true) < bound
        assert torch.equal(ours, again)


DENSE = {  # batch, outputs, inputs
    "of few outputs": (32, 10, 300),
    "of a small batch": (10, 70, 37),
    "of one sample": (1, 5, 3),
    "of rows that are not aligned": (48, 62, 130),
    "of a large batch": (200, 62, 90),
}


def check_dense(name: str, dtype: torch.dtype, device: str, bound: float) -> None:
    """A layer of the table whose weights are columns of matrices with more: output, both gradients, and the same again."""
    batch, m, n = DENSE[name]
    torch.manual_seed(1)
    x, p = torch.randn(2, batch, n).to(dtype), torch.randn(2, m * n + 3).to(dtype)
    g, found = torch.randn(2, batch, m).to(dtype), []
    for place, kind in (("cpu", torch.float64), (device, dtype), (device, dtype)):
        leaf, point = (t.to(place, kind).requires_grad_() for t in (x, p))
        with short_products():
            y = dense_each(leaf, point[:, : m * n].unflatten(1, (m, n)))
            names = {str(f[0].name()) for f in y.grad_fn.next_functions} | {y.grad_fn.name()}
            assert any("product_each" in name for name in names) == (kind == dtype)
            found.append([y.detach(), *torch.autograd.grad(y, (leaf, point), g.to(place, kind))])
    for true, ours, again in zip(*found, strict=True):
        assert off(ours, true) < bound
        assert torch.equal(ours, again)


def check_norm(
    shape: tuple[int, ...], groups: int, added: bool, relu: bool, dtype: torch.dtype, device: str,
    bound: float,
) -> None:  # fmt: skip
    """GroupNorm with what follows it."""
    torch.manual_seed(1)
    values = [torch.randn(2, 3, *shape) + 0.5, torch.randn(2, shape[-1]), torch.randn(2, shape[-1])]
    values += [torch.randn(2, 3, *shape)] if added else []
    values = [v.to(dtype) for v in values]
    g = torch.randn(2, 3, *shape).to(dtype)
    found: list[list[Tensor]] = []
    for place, kind in (("cpu", torch.float64), (device, dtype), (device, dtype)):
        leaves = [v.to(place, kind).requires_grad_() for v in values]
        x, weight, bias, *more = leaves
        y = group_norm_each(x, weight, bias, groups, 1e-5, *(more or [None]), relu=relu)
        found.append([y.detach(), *torch.autograd.grad(y, leaves, g.to(place, kind))])
    for true, ours, again in zip(*found, strict=True):
        assert off(ours, true) < bound
        assert torch.equal(ours, again)


def _both(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def check_model(setting: tuple[nn.Module, Tensor, Tensor, Tensor], device: str) -> None:
    """Outputs and gradients in float32."""
    true = one_by_one(*setting)
    model, x, inputs, target = setting
    with exact():
        cast = (x.float().to(device), inputs.float().to(device), target.to(device))
        ours, again = (together(model.float().to(device), *cast) for _ in range(2))
    for a, b, c in zip(ours, again, true, strict=True):
        assert off(a, c) < 1e-4
        assert torch.equal(a, b)


def check_pooling_model(device: str) -> None:
    """Convolutions, pooling and ReLU use the kernels, unless gradients are differentiated again."""

    def model() -> nn.Module:
        first = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(8, 5, 2, bias=False), nn.MaxPool2d((2, 1)), nn.ReLU()]
        return nn.Sequential(*first, *second, nn.Conv2d(5, 4, 1), nn.MaxPool2d(1, 2))

    setting = case(model, (3, 11, 8))
    v = torch.randn_like(setting[1])
    true = products_one_by_one(*setting, v)
    check_model(setting, device)
    module, x, inputs, target = setting
    cast = (x.float().to(device), inputs.float().to(device), target.to(device))
    with exact():
        assert off(products(module, *cast, v.float().to(device)), true) < 1e-4
    recorded = make_fx(lambda *tensors: together(module, *tensors)[1])(*cast)
    names = [str(node.target) for node in recorded.graph.nodes]
    assert names.count("fairlead.relu_max_pool_each.default") == 2
    assert names.count("fairlead.relu_max_pool_each_back.default") == 2


PRECISIONS = [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
NORMS = [((8, 8, 16), 2), ((7, 5, 32), 2), ((16, 16, 64), 1), ((32, 32, 64), 4), ((32,), 4)]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_kernels_of_convolutions(name: str, dtype: torch.dtype, bound: float) -> None:
    check_conv(name, dtype, "cuda", bound)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS)
@pytest.mark.parametrize("name", WIDE)
def test_wide_tiles(
    name: str, dtype: torch.dtype, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "PROGRAMS", 1)
    check_conv(name, dtype, "cuda", bound)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS)
@pytest.mark.parametrize(
    ("added", "relu"), [(False, False), (False, True), (True, True), (True, False)]
)
@pytest.mark.parametrize(("shape", "groups"), NORMS)
def test_kernels_of_norms(
    shape: tuple[int, ...], groups: int, added: bool, relu: bool, dtype: torch.dtype, bound: float
) -> None:
    # where a sum is near zero its sign, and so the gradient, may differ
    check_norm(shape, groups, added, relu, dtype, "cuda", 4 * bound if relu else bound)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-3), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("name", DENSE)
def test_kernels_of_dense_layers(name: str, dtype: torch.dtype, bound: float) -> None:
    check_dense(name, dtype, "cuda", bound)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_models_on_a_gpu(name: str) -> None:
    make, shape = MODELS[name]
    check_model(case(make, shape, batch=8), "cuda")


@pytest.mark.gpu
def test_a_pooling_model_on_a_gpu() -> None:
    check_pooling_model("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("name", POOLS)
def test_kernels_of_pooling(
    name: str, relu: bool, biased: bool, dtype: torch.dtype, bound: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(triton_pool, "PROGRAMS", 16)
    check_pool(name, relu, biased, dtype, "cuda", bound)


@pytest.mark.gpu
def test_recorded_gradients_in_a_cuda_graph() -> None:
    model, x, inputs, target = case(models.resnet8(4), (3, 16, 16))
    arguments = (x.bfloat16().cuda(), inputs.bfloat16().cuda(), target.cuda())
    model = model.bfloat16().cuda()
    recorded = make_fx(lambda *tensors: together(model, *tensors)[1])(*arguments)
    eager = recorded(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = recorded(*arguments)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(eager, replayed)


@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
@pytest.mark.skipif(NUMPY >= (2, 4), reason="Triton's interpreter needs an older NumPy")
def test_kernels_interpreted(tmp_path: Path) -> None:
    """Triton runs its kernels on the CPU, slowly, where a variable says so before it is imported."""
    lines = [
        "import torch, test_stacked as t",
        "from fairlead.gradients.stacked import triton_conv as kernels",
        "t.triton_pool.PROGRAMS = 16",
        "for dtype, bound in [(torch.float32, 1e-5), (torch.float16, 1e-2)]:",
        "    for name in list(t.CONVOLUTIONS)[:: 1 if dtype == torch.float32 else 4]:",
        "        t.check_conv(name, dtype, 'cpu', bound)",
        "    t.tiles.PROGRAMS, kernels.room_on = 1, lambda device: 1 << 18",
        "    for name in t.WIDE:",
        "        t.check_conv(name, dtype, 'cpu', bound)",
        "    for added, relu in [(False, False), (False, True), (True, True), (True, False)]:",
        "        for shape, groups in [((5, 5, 8), 2), ((4, 4, 16), 16), ((4,), 1)]:",
        "            t.check_norm(shape, groups, added, relu, dtype, 'cpu', 4 * bound)",
        "    for name in t.DENSE:",
        "        t.check_dense(name, dtype, 'cpu', bound)",
        "    for name in list(t.POOLS)[:: 1 if dtype == torch.float32 else 3]:",
        "        for relu, biased in [(False, False), (True, True)]:",
        "            t.check_pool(name, relu, biased, dtype, 'cpu', bound)",
        "t.check_pooling_model('cpu')",
        "op = torch.ops.fairlead.relu_max_pool_each.default",
        "x = torch.randn(2, 2, 5, 4, 3, requires_grad=True)",
        "bias = torch.randn(2, 3, requires_grad=True)",
        "torch.library.opcheck(op, (x, bias, True, 2, 2))",
        "torch.library.opcheck(op, (x, None, False, 3, 1))",
        "print('right')",
    ]
    found = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env={**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)},
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.stdout.strip().endswith("right"), found.stderr[-2000:]
