"""Convolutions with weights of each client's own, on a GPU: are they right, and how long do they take?

    python benchmarks/convolutions.py [check] [layers] [models] [tune] [--only resnet8,vgg11]

check: the kernels of every layer, against float64. layers: each layer's kernels beside torch's convolution
with a group a client, and one client after another. models: a gradient of all clients, in several forms.
tune: other tiles for each layer. Without a word it does the first three, until `--seconds` are over.
Each is timed in a CUDA graph, by events, as a median; the numbers are milliseconds.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fairlead.gradients.stacked import norm, stacked_model
from fairlead.gradients.stacked import triton_conv as kernels
from fairlead.gradients.stacked.tiles import Tile, conv_tile, power_of_2, room_on, weight_tile
from fairlead.task import models
from fairlead.task.layout import Layout

WORK = {  # the model, an image, clients, batch
    "resnet8": (models.resnet8(), (3, 32, 32), 10, 256),
    "femnist": (models.femnist_cnn(), (1, 28, 28), 10, 20),
    "cifar": (models.cifar_cnn(), (3, 32, 32), 50, 10),
    "vgg11": (models.vgg11(), (3, 32, 32), 10, 256),
}
DEVICE, HALF, SINGLE = "cuda", torch.bfloat16, torch.float32
PARTS = ("forward", "input", "weight")
START = time.perf_counter()


@dataclass(frozen=True)
class Conv:
    """A convolution of S clients with batches of B."""

    S: int
    B: int
    C: int
    N: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    H: int
    W: int

    def __str__(self) -> str:
        k, s = self.kernel[0], self.stride[0]
        return f"{self.C}→{self.N} {k}×{k}{f' /{s}' if s > 1 else ''} at {self.H}"

    def sides(self) -> tuple[int, int]:
        """The output's height and width."""
        four = zip((self.H, self.W), self.padding, self.kernel, self.stride, strict=True)
        h, w = ((n + 2 * p - k) // s + 1 for n, p, k, s in four)
        return h, w

    def forms(
        self, dtype: torch.dtype, precision: str, tile: Tile | None = None
    ) -> dict[str, Callable[[], Tensor]]:
        """The three kernels."""
        x, w, g = tensors(self, dtype)
        rest = (self.stride, self.padding, precision, tile)
        return {
            "forward": lambda: kernels.forward(x, w, None, *rest),
            "input": lambda: kernels.input_gradient(g, w, (self.H, self.W), *rest),
            "weight": lambda: kernels.weight_gradient(x, g, self.kernel, *rest),
        }

    def torchs(self, dtype: torch.dtype) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
        """The same with a group a client, and one client after another."""
        x, w, g = tensors(self, dtype)
        S, sp = self.S, (list(self.stride), list(self.padding))
        gx, gg = (t.permute(1, 0, 4, 2, 3).flatten(1, 2).contiguous() for t in (x, g))
        gw = w.permute(0, 4, 3, 1, 2).flatten(0, 1).contiguous()
        last = torch.channels_last
        xs, gs = ([one.permute(0, 3, 1, 2) for one in t] for t in (x, g))
        ws = [one.permute(3, 2, 0, 1).contiguous(memory_format=last) for one in w]

        def back(i: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
            mask = [i == 0, i == 1, False]
            tail = (None, *sp, [1, 1], False, [0, 0])
            op = torch.ops.aten.convolution_backward
            each = list(zip(gs, xs, ws, strict=True))
            return (
                lambda: op(gg, gx, gw, *tail, S, mask),
                lambda: [op(*three, *tail, 1, mask) for three in each],
            )

        forward = (
            lambda: F.conv2d(gx, gw, None, *sp, groups=S),
            lambda: [F.conv2d(a, b, None, *sp) for a, b in zip(xs, ws, strict=True)],
        )
        return {"forward": forward, "input": back(0), "weight": back(1)}


@lru_cache(maxsize=1)
def tensors(c: Conv, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Images, packed weights and the gradient of the output."""
    draw = torch.Generator(DEVICE).manual_seed(0)
    images, weights = (c.B, c.H, c.W, c.C), (*c.kernel, c.C, c.N)
    shapes = images, weights, (c.B, *c.sides(), c.N)
    made = (torch.randn(c.S, *shape, generator=draw, device=DEVICE) for shape in shapes)
    x, w, g = (t.to(dtype) for t in made)
    return x, w, g


def convolutions(name: str) -> list[Conv]:
    """The different convolutions of a model."""
    make, shape, S, B = WORK[name]
    found: dict[Conv, None] = {}

    def note(m: Any, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        h, w = inputs[0].shape[2:]
        sizes = (m.in_channels, m.out_channels, m.kernel_size, m.stride, m.padding)
        found[Conv(S, B, *sizes, h, w)] = None

    model = make()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(note)
    model(torch.randn(1, *shape))
    return list(found)


def milliseconds(run: Callable[[], Any], calls: int = 1, repeats: int = 15) -> float:
    """The median time of a call, in a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph, kept = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        for _ in range(calls):
            kept = run()
    times: list[float] = []
    for turn in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if turn >= 3:
            times.append(begin.elapsed_time(end) / calls)
    del kept, graph
    return statistics.median(times)


def tried(run: Callable[[], Any]) -> Any:
    """What it gives, or the first line of its error."""
    try:
        return run()
    except Exception as error:
        torch.cuda.synchronize()
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:90] if str(error) else ''}"


def shown(value: Any) -> str:
    """A time, or what went wrong."""
    return f"{value:9.4f}" if isinstance(value, float) else f" [{value}]"


def say(*words: object) -> None:
    """Print at once, with the seconds since the start."""
    print(f"{time.perf_counter() - START:6.1f}s", *words, flush=True)


Job: TypeAlias = tuple[Conv, torch.dtype, str, str, Tile | None]


def compiled(job: Job) -> None:
    """Run a kernel once, for one client: Triton keeps what it compiled on the disk."""
    c, dtype, how, part, tile = job
    tried(replace(c, S=1).forms(dtype, how, tile)[part])


def compiled_ahead(jobs: Iterable[Job]) -> None:
    """Compile many kernels at a time, in processes of their own; those that fail say so later."""
    list(_pool().map(compiled, jobs, chunksize=2))


@lru_cache
def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(12, mp_context=get_context("spawn"))


# -- check --------------------------------------------------------------------------------------------


def check(names: list[str]) -> None:
    """Relative errors against float64 on the same numbers, and whether the same comes again."""
    say("check: relative errors of output, input gradient and weight gradient")
    cases = [replace(c, S=2, B=2) for name in names for c in convolutions(name)]
    settings = [(HALF, "ieee", 1e-2), (SINGLE, "ieee", 1e-5)]
    compiled_ahead(
        (c, *setting[:2], part, None) for c, setting, part in product(cases, settings, PARTS)
    )
    worst: dict[tuple[torch.dtype, str], float] = {}
    for c, (dtype, how, bound) in product(cases, settings):
        said = tried(lambda c=c, dtype=dtype, how=how: errors(c, dtype, how))
        if isinstance(said, str):
            say(f"  {c}  {dtype} {how}: {said}")
            continue
        again, found = said
        worst[dtype, how] = max(worst.get((dtype, how), 0.0), *found)
        wrong = not all(e < bound for e in found)
        if wrong or not again:
            what = "WRONG" if wrong else "NOT THE SAME AGAIN"
            say(f"  {c}  {dtype} {how}: {what} {[f'{e:.1e}' for e in found]}")
    for (dtype, how), error in worst.items():
        say(f"  {dtype!s:15s} {how}: worst {error:.1e} of {len(cases)} layers")


def errors(c: Conv, dtype: torch.dtype, how: str) -> tuple[bool, list[float]]:
    """Whether two calls give the same bits, and the relative errors."""
    x, w, g = (t.double() for t in tensors(c, dtype))
    nchw = x.permute(0, 1, 4, 2, 3)
    ws = w.permute(0, 4, 3, 1, 2)
    true: dict[str, list[Tensor]] = {"forward": [], "input": [], "weight": []}
    for a, b, d in zip(nchw, ws, g.permute(0, 1, 4, 2, 3), strict=True):
        y = F.conv2d(a, b, None, c.stride, c.padding)
        tail = (None, c.stride, c.padding, [1, 1], False, [0, 0], 1, [True, True, False])
        da, db, _ = torch.ops.aten.convolution_backward(d, a, b, *tail)
        true["forward"].append(y.permute(0, 2, 3, 1))
        true["input"].append(da.permute(0, 2, 3, 1))
        true["weight"].append(db.permute(2, 3, 1, 0))
    found, same = [], True
    for part, run in c.forms(dtype, how).items():
        ours, again = run(), run()
        same &= torch.equal(ours, again)
        right = torch.stack(true[part])
        found.append(float((ours.double() - right).norm() / right.norm()))
    return same, found


# -- layers -------------------------------------------------------------------------------------------


def layers(names: list[str]) -> None:
    """Milliseconds of every layer's kernels."""
    for name in names:
        cases = convolutions(name)
        for dtype, how in ((HALF, "ieee"), (SINGLE, "tf32"))[: 1 if name == "vgg11" else 2]:
            say(f"layers of {name}, {cases[0].S} × {cases[0].B}, {dtype}: Triton, grouped, in turn")
            compiled_ahead((c, dtype, how, part, None) for c, part in product(cases, PARTS))
            for c in cases:
                ours, others = c.forms(dtype, how), c.torchs(dtype)
                x, _, g = tensors(c, dtype)
                ideal = (x.nbytes + g.nbytes) / 4.3e9
                row = []
                for part, run in ours.items():
                    both = [run, *(others[part] if dtype == HALF else others[part][:1])]
                    times = [tried(lambda f=f: milliseconds(f, 5, 7)) for f in both]
                    row.append(f"{part} " + "".join(map(shown, times)))
                say(f"  {c!s:18s} bytes{ideal:7.4f} | " + " | ".join(row))
                del ours, others, x, g
            torch.cuda.empty_cache()


# -- models -------------------------------------------------------------------------------------------


class Step:
    """The gradients of all clients of a model, in several forms."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        make, shape, S, B = WORK[name]
        torch.manual_seed(0)
        self.model = make().to(DEVICE, dtype)
        self.layout = Layout(self.model)
        flat = self.layout.flatten(self.model, dtype)[0]
        self.x = flat + 0.01 * torch.randn(S, len(flat), device=DEVICE, dtype=dtype)
        self.inputs = torch.randn(S, B, *shape, device=DEVICE, dtype=dtype)
        self.target = torch.randint(0, 10, (S, B), device=DEVICE)
        self.arguments = (self.x, self.inputs, self.target)

    def vmapped(self, x: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        """As the library does it today."""
        return vmap(grad(self.loss))(x, inputs, target)

    def loss(self, x: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        """One client's loss."""
        return F.cross_entropy(functional_call(self.model, self.layout.views(x), (inputs,)), target)

    def stacked(self, x: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        """By the model on stacked parameters."""
        run = stacked_model(self.model)
        assert run is not None
        leaf = x.detach().requires_grad_()
        parts = leaf.split([p.size for p in self.layout.parameters], 1)
        pairs = zip(self.layout.parameters, parts, strict=True)
        with torch.enable_grad():
            output = run({p.name: t.unflatten(1, p.shape) for p, t in pairs}, inputs)
            losses = F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none")
            loss = losses.unflatten(0, target.shape).mean(1).sum()
            return torch.autograd.grad(loss, leaf)[0]

    def in_turn(self, x: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        """One client after another, on four streams, with the channels last."""
        now = torch.cuda.current_stream()
        out = torch.empty_like(x)
        for s in self.streams:
            s.wait_stream(now)
        for i in range(len(x)):
            with torch.cuda.stream(self.streams[i % 4]):
                image = inputs[i].contiguous(memory_format=torch.channels_last)
                out[i] = grad(self.loss)(x[i], image, target[i])
        for s in self.streams:
            now.wait_stream(s)
        return out

    def recorded(self, form: Callable[..., Tensor]) -> Callable[..., Any]:
        """A form as a list of operators."""
        return make_fx(lambda *tensors: form(*tensors))(*self.arguments)

    def right(self) -> Tensor:
        """The same gradients in float64, for two clients."""
        model = copy.deepcopy(self.model).double()
        layout = Layout(model)

        def loss(x: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(model, layout.views(x), (inputs,)), target)

        few = zip(self.x[:2].double(), self.inputs[:2].double(), self.target, strict=False)
        return torch.stack([grad(loss)(*one) for one in few])

    def forms(self, name: str, slow: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The forms, those that inductor compiles apart; each is made when its turn comes."""
        if not slow:
            recorded = self.recorded(self.stacked)
            yield "stacked, recorded", lambda: recorded(*self.arguments)
            yield "stacked, eager", lambda: self.stacked(*self.arguments)
            yield "vmap", lambda: self.vmapped(*self.arguments)
            self.streams = [torch.cuda.Stream() for _ in range(4)]
            yield "in turn on 4 streams", lambda: self.in_turn(*self.arguments)
            return
        compiled = torch.compile(self.recorded(self.stacked))
        yield "stacked, compiled", lambda: compiled(*self.arguments)
        if name == "resnet8" and self.x.dtype == HALF:
            norm.FUSED = False
            plain = torch.compile(self.recorded(self.stacked))
            norm.FUSED = True
            yield "stacked with plain norms, compiled", lambda: plain(*self.arguments)
            old = torch.compile(self.recorded(self.vmapped))
            yield "vmap, compiled", lambda: old(*self.arguments)


def whole(names: list[str], seconds: float) -> None:
    """Milliseconds of a gradient of all clients."""
    small = [name for name in names if name != "vgg11"]
    settings = [*product(names, [HALF]), *product(small, [SINGLE])]
    for slow, (name, dtype) in product((False, True), settings):
        if time.perf_counter() - START > seconds:
            say(f"no time left for {name} in {dtype}")
            continue
        _, _, clients, batch = WORK[name]
        say(f"a gradient of {name}, {clients} clients × {batch}, {dtype}")
        said = tried(lambda args=(name, dtype, slow, seconds): one_model(*args))
        if said is not None:
            say(f"  {said}")
        torch.cuda.empty_cache()


def one_model(name: str, dtype: torch.dtype, slow: bool, seconds: float) -> None:
    """Some forms of one model."""
    step = Step(name, dtype)
    right = step.right()
    for form, run in step.forms(name, slow):
        if time.perf_counter() - START > seconds:
            say("  no time left")
            return
        error = tried(lambda run=run: _off(run(), right))
        took = tried(lambda run=run: milliseconds(run))
        far = error if isinstance(error, str) else f"{error:.1e}"
        say(f"  {form:36s}{shown(took)} ms, error {far}")


def _off(ours: Tensor, right: Tensor) -> float:
    return float((ours[: len(right)].double() - right).norm() / right.norm())


# -- tune ---------------------------------------------------------------------------------------------


def tune(names: list[str]) -> None:
    """The best tiles of each layer in bfloat16, beside the one that is chosen now."""
    for name in names:
        options = {cp: _tiles(*cp) for cp in product(convolutions(name), PARTS)}
        say(f"tune {name}: {sum(map(len, options.values()))} kernels")
        compiled_ahead(
            (c, HALF, "ieee", part, t) for (c, part), tiles in options.items() for t in tiles
        )
        for (c, part), tiles in options.items():
            runs = {t: c.forms(HALF, "ieee", t)[part] for t in tiles}
            times = {t: tried(lambda f=f: milliseconds(f, 5, 5)) for t, f in runs.items()}
            good = sorted((v, _short(t)) for t, v in times.items() if isinstance(v, float))
            best = "; ".join(f"{v:.4f} {t}" for v, t in good[:4])
            now = f"now {shown(times[tiles[0]])} by {_short(tiles[0])}"
            say(f"{name} {c!s:18s} {part:8s} {now}; {best}")


def _short(t: Tile) -> str:
    return f"{t.m}×{t.n}×{t.k} {t.warps}w {t.stages}s" + f" step {t.step}" * bool(t.step)


def _tiles(c: Conv, part: str) -> list[Tile]:
    """Tiles to try, the one that is chosen now first."""
    h, w = c.sides()
    taps, room = c.kernel[0] * c.kernel[1], room_on(torch.device("cuda"))
    if part == "weight":
        chosen = weight_tile(c.N, c.C, c.kernel, HALF, "ieee", room)
        steps = {taps * c.C, c.kernel[1] * c.C, max(64, c.C), chosen.step}
        sizes = [(power_of_2(s, 16), s) for s in sorted(steps) if 16 <= s <= 256]
        tiles = [
            Tile(m, chosen.n, k, 8 if m * chosen.n >= 8192 else 4, stages, step)
            for (m, step), k, stages in product(sizes, (32, 64, 128), (1, 2, 3))
            if m * k <= 16384
        ]
    else:
        read, made = (c.C, c.N) if part == "forward" else (c.N, c.C)
        classes = 1 if part == "forward" else c.stride[0] * c.stride[1]
        pixels = c.B * (h * w if part == "forward" else c.H * c.W // classes)
        chosen = conv_tile(pixels, made, read, max(1, taps // classes), HALF, "ieee", room)
        depths = [k for k in (16, 32, 64, 128) if k <= power_of_2(taps * read, 16)]
        tiles = [
            Tile(m, chosen.n, k, 8 if m == 256 or m * chosen.n >= 16384 else 4, stages)
            for m, k, stages in product((64, 128, 256), depths, (1, 2, 4))
            if m * k <= 16384
        ]
    return [chosen, *(t for t in tiles if t != chosen)]


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["check", "layers", "models", "tune", []])
    parser.add_argument("--only", default=",".join(WORK))
    parser.add_argument("--seconds", type=float, default=200.0)
    given = parser.parse_args()
    names = given.only.split(",")
    what = given.what or ["check", "models", "layers"]
    say(torch.__version__, torch.cuda.get_device_name())
    doing = {"check": check, "layers": layers, "tune": tune}
    for word in what:
        if word == "models":
            whole(names, given.seconds)
            continue
        said = tried(lambda word=word: doing[word](names))
        if said is not None:
            say(f"{word}: {said}")


if __name__ == "__main__":
    main()
