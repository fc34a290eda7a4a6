"""Checks for methods of your own: the same properties that fairlead's own methods are tested for.

>>> import fairlead as fl
>>> from fairlead import testing
>>> testing.check_method(fl.FedAvg(lr=0.1), properties=["repeats"])
[]
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead.core.method import Algorithm
from fairlead.engine.simulate import Simulate
from fairlead.errors import FairleadError, unknown
from fairlead.run.many import train_many
from fairlead.run.train import Run, train
from fairlead.task import models
from fairlead.task.task import Task

WORK: dict[str, Any] = {
    "rounds": 5, "cohort": 3, "batch_size": 4, "epochs": 2, "dropout": 0.25, "seed": 11, "progress": False,
}  # fmt: skip
"""Sampling, clients that do not answer, short last batches."""
RAGGED: dict[str, Any] = {**WORK, "epochs": None, "steps": [1, 5, 3, 4, 2], "weighting": "size"}
"""The same with different numbers of steps, weighted by size."""
LARGE: dict[str, Any] = {**WORK, "rounds": 3, "epochs": 1, "batch_size": 9, "dropout": 0.0}
"""Enough work for the fast forms; clients take one to three steps."""

Property = Callable[[Algorithm[Any, Any], str], Iterator[str]]


@functools.cache
def small_task(device: str = "cpu", dtype: torch.dtype = torch.float64) -> Task:
    """A small network on random data, with clients of very different sizes."""
    return _network((5, 6, 3), (7, 4, 6, 1, 11), device, dtype)


@functools.cache
def large_task(device: str = "cpu", dtype: torch.dtype = torch.float64) -> Task:
    """41,488 parameters: the forms of the engine that are for large models are in use."""
    return _network((64, 512, 16), (18, 27, 9, 18, 27), device, dtype)


def _network(
    widths: tuple[int, ...], sizes: tuple[int, ...], device: str, dtype: torch.dtype
) -> Task:
    rng = np.random.default_rng(3)
    n, ends = sum(sizes), np.cumsum(sizes)
    x, y = torch.tensor(rng.normal(size=(n, widths[0]))), torch.tensor(rng.integers(0, 3, n))
    owners = [np.arange(e - s, e) for s, e in zip(sizes, ends, strict=True)]
    return Task(
        models.mlp(*widths), "cross_entropy", (x, y), owners, test=(x, y), l2=0.01, dtype=dtype,
        device=device,
    )  # fmt: skip


def check_method(
    method: Algorithm[Any, Any], properties: Sequence[str] | None = None, device: str = "cpu"
) -> list[str]:
    """Run a method through the properties that every method should have, and say in a sentence each what
    does not hold; an empty list if all do.

    properties: some of `PROPERTIES`; all by default.
    """
    names = list(PROPERTIES) if properties is None else properties
    found: list[str] = []
    for name in names:
        if name not in PROPERTIES:
            raise unknown("property", name, PROPERTIES)
        try:
            found += list(PROPERTIES[name](method, device))
        except Exception as error:  # a method can fail in any way
            sentence = " ".join(str(error).split()) or type(error).__name__
            found.append(f"{name}: the run failed: {type(error).__name__}: {sentence}")
    return found


# -- comparing ------------------------------------------------------------------------------------


def differences(run: Run, other: Run, atol: float = 1e-10) -> Iterator[str]:
    """In what two runs that should do the same differ; an `atol` of zero asks for the same bytes."""
    one, two = _vectors(run), _vectors(other)
    if one.keys() != two.keys():
        yield f"the states have other fields: {sorted(one)} and {sorted(two)}"
        return
    for name, value in one.items():
        value, expected = value.cpu(), two[name].cpu()
        if value.shape != expected.shape:
            yield f"{name} has shape {tuple(value.shape)} and {tuple(expected.shape)}"
        elif not atol and not torch.equal(value, expected):
            yield f"{name} differs in its bytes, by up to {_apart(value, expected):.1e}"
        elif atol and not _apart(value, expected) <= atol:
            yield f"{name} differs by {_apart(value, expected):.1e}"
    for name, count in dataclasses.asdict(run.counters).items():
        if count != (expected := getattr(other.counters, name)):
            yield f"{name} are counted as {count} and {expected}"
    for way in ("up", "down"):
        if getattr(run.ledger, way) != getattr(other.ledger, way):
            bits = getattr(run.ledger, way), getattr(other.ledger, way)
            yield f"bits {way} are counted as {bits[0]} and {bits[1]}"


def _apart(value: Tensor, expected: Tensor) -> float:
    return float((value.double() - expected.double()).abs().max()) if value.numel() else 0.0


def _vectors(run: Run) -> dict[str, Tensor]:
    """The server's state, the clients' and the buffers."""
    found = dict(run.state.tensors())
    clients = run.client_states()
    if clients is not None:
        found |= {f"client {name}": t for name, t in clients.tensors().items()}
    return {**found, "buffers": run.session.buffers}


def _labelled(what: str, run: Run, other: Run, atol: float) -> Iterator[str]:
    for sentence in differences(run, other, atol):
        yield f"{what}: {sentence}"


# -- the properties -------------------------------------------------------------------------------


def engines_agree(method: Algorithm[Any, Any], device: str) -> Iterator[str]:
    """Clients one at a time, as a matrix and in chunks, with uneven clients, sampling and dropouts."""
    for settings in (WORK, RAGGED):
        yield from _engines(method, small_task("cpu"), small_task(device), settings)


def engines_agree_at_large_d(method: Algorithm[Any, Any], device: str) -> Iterator[str]:
    """The same with a model for which the fast forms are in use."""
    yield from _engines(method, large_task("cpu"), large_task(device), LARGE)


def _engines(
    method: Algorithm[Any, Any], task: Task, there: Task, settings: dict[str, Any]
) -> Iterator[str]:
    reference = train(task, method, engine="debug", **settings)
    for name, engine in (
        ("vmap", Simulate("vmap")), ("loop", Simulate("loop")),
        ("one client per chunk", Simulate("vmap", memory=1)),
    ):  # fmt: skip
        run = train(there, method, engine=engine, **settings)
        yield from _labelled(f"engine {name} and debug", run, reference, 1e-10)


def repeats(method: Algorithm[Any, Any], device: str) -> Iterator[str]:
    """Equal seeds give equal bytes in one process, other seeds do not."""
    task = small_task(device)
    for engine in ("vmap", "loop"):
        one, two = (train(task, method, engine=engine, **WORK) for _ in range(2))
        yield from _labelled(f"two runs of one seed, engine {engine}", one, two, 0.0)
        if torch.equal(one.x, train(task, method, engine=engine, **{**WORK, "seed": 12}).x):
            yield f"engine {engine}: another seed gives the same model"


def repeats_at_large_d(method: Algorithm[Any, Any], device: str) -> Iterator[str]:
    """The same where the fast forms are in use: also a small run before does not change a byte."""
    task = large_task(device, torch.float32)
    for engine in ("vmap", "loop"):
        one = train(task, method, engine=engine, **LARGE)
        train(small_task(device), method, engine=engine, **WORK)
        two = train(task, method, engine=engine, **LARGE)
        yield from _labelled(f"two runs of one seed at large d, engine {engine}", one, two, 0.0)


def resumes(method: Algorithm[Any, Any], device: str) -> Iterator[str]:
    """A run that goes on, from memory or from a checkpoint, ends in the bytes of an unbroken one."""
    yield from _resumed(method, small_task(device), WORK)


def resumes_at_large_d(method: Algorithm[Any, Any], device: str) -> Iterator[str]:
    """The same where the fast forms are in use."""
    yield from _resumed(method, large_task(device, torch.float32), LARGE)


def _resumed(method: Algorithm[Any, Any], task: Task, settings: dict[str, Any]) -> Iterator[str]:
    for engine in ("vmap", "loop"):
        whole = train(task, method, engine=engine, **settings)
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder) / "run"
            first = {**settings, "rounds": 2}
            part = train(task, method, engine=engine, checkpoints=kept, **first)
            rest = train(task, method, engine=engine, resume=part, **settings)
            yield from _labelled(f"resumed from a run, engine {engine}", rest, whole, 0.0)
            rest = train(task, method, engine=engine, resume=kept, **settings)
            yield from _labelled(f"resumed from a checkpoint, engine {engine}", rest, whole, 0.0)


def follows_in_float32(method: Algorithm[Any, Any], device: str) -> Iterator[str]:
    """In float32 everything stays float32, and follows float64."""
    exact = train(small_task(device), method, engine="vmap", **WORK)
    run = train(
        small_task(device, torch.float32),
        method,
        engine=Simulate("vmap", precision="float32"),
        **WORK,
    )
    for name, value in _vectors(run).items():
        if value.dim() and value.dtype != torch.float32:
            yield f"{name} becomes {value.dtype} in a float32 run"
    if not torch.allclose(run.x.double(), exact.x, rtol=1e-3, atol=1e-4):
        yield f"the float32 run differs from float64 by {_apart(run.x, exact.x):.1e}"


def needs_answers(method: Algorithm[Any, Any], device: str) -> Iterator[str]:
    """A round in which no client answers changes nothing."""
    run = train(
        small_task(device), method, rounds=3, steps=2, dropout=[[0, 1, 2, 3, 4]] * 3,
        engine="vmap", progress=False,
    )  # fmt: skip
    if not torch.equal(run.x, run.task.start(0)[0]):
        yield "rounds without answers change the model"
    if run.counters.lost != 15:
        yield f"15 clients did not answer, {run.counters.lost} were counted"


def keeps_states_of_cohorts(method: Algorithm[Any, Any], device: str) -> Iterator[str]:
    """Only clients that took part have a state."""
    run = train(
        small_task(device), method, rounds=2, steps=2, cohort=[[1, 3], [3, 4]], engine="vmap",
        progress=False,
    )  # fmt: skip
    everyone = run.counters.exchanges > 0 and run.ledger.exchanges[0].clients.tolist() == [
        0, 1, 2, 3, 4,
    ]  # fmt: skip
    allowed = set(range(5)) if everyone else {1, 3, 4}
    if not set(run.session.states.touched.tolist()) <= allowed:
        yield f"clients {run.session.states.touched.tolist()} have a state, of {sorted(allowed)}"


def trains_together(method: Algorithm[Any, Any], device: str) -> Iterator[str]:
    """Several runs at once give what single runs give."""
    task, settings = small_task(device), {**RAGGED}
    seed = settings.pop("seed")
    lr = method.rates().get("lr")
    other = method if lr is None else method.with_lr(0.05)
    runs = [(method, seed), (other, seed), (method, seed + 1)]
    many = train_many(task, runs, engine="vmap", **settings)
    for (own, number), run in zip(runs, many, strict=True):
        alone = train(task, own, engine="vmap", seed=number, **settings)
        yield from _labelled("runs at once and a single run", run, alone, 1e-10)


PROPERTIES: dict[str, Property] = {
    "engines agree": engines_agree,
    "engines agree at large d": engines_agree_at_large_d,
    "repeats": repeats,
    "repeats at large d": repeats_at_large_d,
    "resumes": resumes,
    "resumes at large d": resumes_at_large_d,
    "float32": follows_in_float32,
    "no answers": needs_answers,
    "states": keeps_states_of_cohorts,
    "runs at once": trains_together,
}
"""The properties that `check_method` looks at, by name."""


def require(method: Algorithm[Any, Any], **how: Any) -> None:
    """Raise an error that lists what `check_method` found."""
    found = check_method(method, **how)
    if found:
        raise FairleadError(f"{type(method).__name__} fails: " + "; ".join(found))
