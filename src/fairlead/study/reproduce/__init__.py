"""Experiments from the papers, one recipe each, with the results next to the paper's claims."""

from fairlead.study.reproduce.case import Case, Form, Result, Results, Tuned, tuned
from fairlead.study.reproduce.catalog import recipe, recipes
from fairlead.study.reproduce.outcome import Claim, Outcome, judged
from fairlead.study.reproduce.recipe import Recipe
from fairlead.study.reproduce.runner import Done, carry_out

__all__ = [
    "Case", "Claim", "Done", "Form", "Outcome", "Recipe", "Result", "Results", "Tuned",
    "carry_out", "judged", "recipe", "recipes", "tuned",
]  # fmt: skip
