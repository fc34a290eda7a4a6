"""Experiments from the papers, one recipe each, with the results next to the paper's claims."""

from collections.abc import Callable

from fairlead.errors import unknown
from fairlead.study.reproduce import saddle
from fairlead.study.reproduce.outcome import Claim, Outcome

RECIPES: dict[str, Callable[..., Outcome]] = {
    "saddle-fig1": saddle.figure1,
    "saddle-fig2": saddle.figure2,
}


def recipe(name: str) -> Callable[..., Outcome]:
    """The recipe for an experiment."""
    if name not in RECIPES:
        raise unknown("experiment", name, RECIPES)
    return RECIPES[name]


__all__ = ["RECIPES", "Claim", "Outcome", "recipe"]
