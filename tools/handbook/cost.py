"""What a round costs a client, from the ledger and the counters of a run on the demo's data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch

import fairlead as fl
from handbook.entry import Entry
from handbook.pictures import made

ROUNDS, STEPS, BATCH = 5, 3, 20
BITS = 32


@dataclass(frozen=True)
class Measured:
    """Per client and round: bits each way, bits kept between rounds, gradients of single samples, exchanges."""

    up: float
    down: float
    kept: float
    gradients: float
    exchanges: float
    sizes: dict[str, float]


@cache
def _task(model: str) -> fl.Task:
    return fl.tasks.digits(model=model)


@cache
def measured(entry: Entry) -> Measured:
    """A short run in which all clients take part."""
    task = _task(entry.model)
    run = fl.train(
        task, made(entry.call), rounds=ROUNDS, steps=STEPS, batch_size=BATCH, eval_every=ROUNDS,
        objective=False, workers=1, progress=False,
    )  # fmt: skip
    visits = ROUNDS * task.clients
    part = getattr(run.algorithm, "part", None)
    return Measured(
        run.ledger.up / visits,
        run.ledger.down / visits,
        BITS * _numbers(run.client_states([0])),
        run.counters.gradients / visits,
        run.counters.exchanges / ROUNDS,
        {
            "d": task.dim, "K": STEPS, "b": BATCH, "n": sum(map(len, task.split)) / task.clients,
            "p": 0 if part is None else len(torch.arange(task.dim)[part]),
        },
    )  # fmt: skip


def _numbers(record: Any) -> int:
    """How many numbers a record holds."""
    if record is None:
        return 0
    if isinstance(record, torch.Tensor):
        return record.numel()
    if isinstance(record, dict):
        return sum(map(_numbers, record.values()))
    return sum(_numbers(getattr(record, field.name)) for field in fields(record))


def checked(entry: Entry) -> list[tuple[str, str, str]]:
    """The rows of the table: what, its formula, and what the run measured; an error if the two differ."""
    found, cost = measured(entry), entry.cost
    rows = [
        ("sent up", cost.up, found.up, "numbers", BITS),
        ("received", cost.down, found.down, "numbers", BITS),
        ("kept between rounds", cost.kept, found.kept, "numbers", BITS),
        ("gradients of single samples", cost.gradients, found.gradients, "", 1),
        ("exchanges", str(cost.exchanges), found.exchanges, "", 1),
    ]
    table = []
    for what, formula, value, unit, size in rows:
        if formula is None:
            per = value / found.sizes["d"]
            table.append((what, f"d numbers, coded to {per:.3g} bits each", shown(value, size)))
            continue
        expected = eval(formula, {}, found.sizes) * size
        if abs(expected - value) > 1e-6 * max(1.0, value):
            raise ValueError(
                f"{entry.name}: {what} is {formula} = {expected}, but {value} was counted"
            )
        words = "nothing" if formula == "0" else f"{written(formula)} {unit}".strip()
        table.append((what, words, shown(value, size)))
    return table


def written(formula: str) -> str:
    """A formula as one writes it.

    >>> written("n + 2*(K - 1)*b")
    'n + 2(K − 1)b'
    """
    return formula.replace("*", "").replace("-", "−")


def shown(value: float, size: int) -> str:
    """An amount: bits as kilobits, counts as they are.

    >>> shown(20800.0, 32), shown(0.0, 32), shown(263.7, 1)
    ('20.8 kbit', '0', '263.7')
    """
    if size == 1 or value == 0:
        return f"{value:,.1f}".removesuffix(".0")
    return f"{value / 1e3:,.1f} kbit"
