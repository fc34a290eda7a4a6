"""What the scripts of the peers share: models, data and the way to answer. Plain torch alone.

The scripts run in the peers' own environments, where fairlead is not installed. Models are those of
`fairlead.task.models`, layer by layer, so that the same seed gives the same start. A script answers lines
of JSON from its input with lines of JSON:

    {"work": {…}, "rounds": 5}  →  {"seconds_per_round": [0.1, …], "version": "0.6.0"}
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

Work = dict[str, Any]


@dataclass(frozen=True)
class Runner:
    """A workload that has been set up."""

    run: Callable[[int], list[float]]
    """Runs so many rounds and gives the seconds of each, or their mean."""
    x: Callable[[], list[float]]
    """The parameters after them."""
    note: Callable[[], str] = str
    """How they were run."""


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def femnist_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 62),
    )  # fmt: skip


def cifar_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def vgg11() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if width == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
    layers += [nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    last = nn.Linear(512, 10)
    made = nn.Sequential(*layers, last)
    for module in made:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(module.bias)
    nn.init.normal_(last.weight, std=0.01)
    return made


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(2, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.GroupNorm(2, outputs),
        )  # fmt: skip
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Sequential() if same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(2, outputs)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def resnet8() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(2, 16), nn.ReLU()]
    blocks = [Residual(n, m, s) for n, m, s in ((16, 16, 1), (16, 32, 2), (32, 64, 2))]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp, "femnist_cnn": femnist_cnn, "cifar_cnn": cifar_cnn, "vgg11": vgg11,
    "resnet8": resnet8,
}  # fmt: skip


def model(work: Work) -> nn.Module:
    """The workload's model at its start."""
    torch.manual_seed(0)
    return MODELS[work["model"]](*work["arguments"])


def samples(count: int, shape: Sequence[int], classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *shape, generator=generator)
    return x, torch.randint(classes, (count,), generator=generator)


def data(work: Work) -> tuple[Tensor, Tensor]:
    """The clients' samples, one client after the other: (population, K·B, …)."""
    each = work["steps"] * work["batch"]
    x, y = samples(work["population"] * each, work["shape"], work["classes"])
    return x.unflatten(0, (-1, each)), y.unflatten(0, (-1, each))


def held_out(work: Work) -> tuple[Tensor, Tensor]:
    """The test samples of a whole run."""
    return samples(work["test"], work["shape"], work["classes"], seed=1)


def between(marks: Sequence[float]) -> list[float]:
    """The seconds from each mark to the next."""
    return [b - a for a, b in pairwise(marks)]


def flat(parameters: Any) -> list[float]:
    """Parameters as one list of numbers."""
    return torch.cat([p.detach().flatten() for p in parameters]).tolist()


def serve(begin: Callable[[Work], Runner], version: str) -> None:
    """Answer requests until there are none; `begin` sets a workload up."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    known: Work | None = None
    runner: Runner | None = None
    for line in iter(lines.get, ""):
        asked = json.loads(line)
        if runner is None or asked["work"] != known:
            known, runner = asked["work"], None  # what was there is let go of first
            runner = begin(asked["work"])
        answer = {"seconds_per_round": runner.run(asked["rounds"]), "version": version}
        answer["note"] = runner.note()
        if asked.get("x"):
            answer["x"] = runner.x()
        print(json.dumps(answer), file=answers, flush=True)


def _listen(lines: queue.Queue[str]) -> None:
    """Hand requests on; if whoever asked is gone, end at once, also in the middle of a round."""
    parent = os.getppid()
    for line in sys.stdin:
        lines.put(line)
    lines.put("")
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
