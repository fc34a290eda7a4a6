"""Which conditions of which theorem the defaults meet on the demo's task, by `fl.theory`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

import fairlead as fl
from fairlead.theory import Bound, Constants, Settings
from handbook.entry import Entry, prose
from handbook.pictures import made

CLIENTS, STEPS, ROUNDS = 10, 5, 60
"""The demo's."""
CENTRES, INNER = ROUNDS // 5, 1e-6
"""Catalyst's centres in as many rounds, and how exactly each is found."""


@cache
def demo() -> Constants:
    """The constants of the demo's task: softmax regression on digits, batches of a fifth of a client's data.

    G² = 2ζ_*² and B² = 2 hold at every point of a convex task, α is at most the number of clients, and FedPVR corrects
    the model's only layer; the others are measured at the start."""
    task = fl.tasks.digits(clients=CLIENTS, dtype=torch.float64)
    task = task.replace(optimum=fl.minimize(task))
    found = fl.measure.known(task, steps=20, samples=40)
    size = min(map(len, task.split))
    assert found.sigma is not None
    assert found.C0 is not None
    noise = fl.measure.batch_noise(found.sigma**2, size // STEPS, size) ** 0.5
    return replace(
        found,
        sigma=noise,
        q=0.0,
        alpha=float(CLIENTS),
        zeta_rest=0.0,
        zeta_hat_rest=0.0,
        G=(2 * found.C0) ** 0.5,
        B=2**0.5,
    )


@cache
def game() -> Constants:
    """The constants of the random game of the example."""
    task = fl.problems.quadratic_game(clients=CLIENTS, pairwise=True)
    known = task.constants
    assert known is not None
    found = fl.measure.dissimilarity(task, task.optimum)
    return replace(known, sigma=0.0, zeta_pair=found["zeta_pair"])


def constants(entry: Entry) -> Constants:
    """Those of the task of the entry's example."""
    return game() if entry.game else demo()


def step_size(entry: Entry) -> float:
    """The local step size of the example."""
    return float(made(entry.call).rates()["lr"])


def bounds(entry: Entry) -> list[tuple[Bound, Bound]]:
    """Every theorem about the method twice: with the step size of the example, and with its own."""
    known = constants(entry)
    ours = Settings(CLIENTS, STEPS, lr=step_size(entry))
    own = Settings(CLIENTS, STEPS)
    return [(_bound(name, known, ours), _bound(name, known, own)) for name in entry.theorems]


def _bound(name: str, known: Constants, settings: Settings) -> Bound:
    if name == "catalyst":
        return fl.theory.catalyst(known, settings, CENTRES, theta=1.0, inner_accuracy=INNER)
    return getattr(fl.theory, name)(known, settings, rounds=ROUNDS)


def section(entry: Entry) -> str:
    """The section of the page."""
    if not entry.theorems:
        return prose(entry.theory_note)
    where = (
        f"`fl.problems.quadratic_game(clients={CLIENTS}, pairwise=True)`" if entry.game
        else "the demo's task (softmax regression on digits, ten clients split by label, batches of a fifth of their data)"
    )  # fmt: skip
    known = constants(entry)
    words = [
        f"With lr = {step_size(entry):g}, {STEPS} local steps, all {CLIENTS} clients and {ROUNDS} rounds on {where}, where "
        f"{prose(_constants(known, entry))}:"
    ]
    rows = ["| theorem | condition | left | right | |", "|---|---|---|---|---|"]
    for ours, _ in bounds(entry):
        for condition in ours.conditions:
            verdict = "holds" if condition.holds else "**fails**"
            rows.append(
                f"| {ours.theorem} | {prose(condition.words)} | {condition.left:.2g} | {condition.right:.2g} | {verdict} |"
            )
    words.append("\n".join(rows))
    words.append("\n".join(f"- {prose(_verdict(ours, own, entry))}" for ours, own in bounds(entry)))
    return "\n\n".join([*words, prose(entry.theory_note)] if entry.theory_note else words)


def _constants(known: Constants, entry: Entry) -> str:
    names = {"mu": "μ", "beta": "β"} | (
        {} if entry.game else {"G": "G", "B": "B", "sigma": "σ", "F": "f(x⁰) − f*"}
    )
    return ", ".join(f"{sign} = {getattr(known, name):.2g}" for name, sign in names.items())


def _verdict(ours: Bound, own: Bound, entry: Entry) -> str:
    after = (
        f"after {CENTRES} centres, if each is found to {INNER:g}" if entry.name == "catalyst"
        else f"after {ROUNDS} rounds"
    )  # fmt: skip
    if ours.holds:
        return f"{ours.theorem}: all conditions hold, and {ours.of} ≤ {ours.value:.2g} {after}."
    if own.holds:
        return (
            f"{ours.theorem}: says nothing for this step size; for its own, {own.lr:.2g}, it says that {own.of} ≤ "
            f"{own.value:.2g} {after}."
        )  # fmt: skip
    failing = " and ".join(f"“{c.words}”" for c in own.conditions if not c.holds)
    return f"{ours.theorem}: even its own step size, {own.lr:.2g}, does not meet {failing} here."
