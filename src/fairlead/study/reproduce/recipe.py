"""A recipe: an experiment of a paper as a list of cases and a conclusion. A new one is one file in `experiments`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from fairlead.errors import FairleadError, unknown
from fairlead.study.reproduce.case import Case, Form, Results
from fairlead.study.reproduce.outcome import Outcome


class Recipe(ABC):
    """An experiment.

    paper, item: what it reproduces. data: the data set it needs, empty if it makes its own. minutes: about how
    long its quick form takes on two cores, and its full form on `runs_on`; None if there is no such form.
    readings: the ways to read what the paper leaves open, the default first. targets: metrics and values whose
    costs are stored. columns: metrics whose curves are stored, also
    patterns such as "drift/*"; with `curves` off, only their ends and best values. lasting: a target is reached
    when it is not left again. long: a case takes minutes, so one that was
    killed goes on where it was.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    item: ClassVar[str] = ""
    data: ClassVar[str] = ""
    minutes: ClassVar[tuple[float | None, float | None]] = (1, 1)
    runs_on: ClassVar[str] = "two cores"
    readings: ClassVar[Mapping[str, Sequence[str]]] = {}
    targets: ClassVar[Mapping[str, Sequence[float]]] = {}
    columns: ClassVar[Sequence[str]] = ("loss", "accuracy")
    curves: ClassVar[bool] = True
    lasting: ClassVar[bool] = False
    long: ClassVar[bool] = False

    @abstractmethod
    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        """What is to be done. Asked again when all of it is done, so that cases may depend on results."""

    @abstractmethod
    def conclude(self, form: Form, done: Results) -> Outcome:
        """The table, the claims and the figure; also of a part of the cases."""

    def reading(self, form: Form, name: str) -> str:
        """The reading chosen for something that the paper leaves open."""
        return form.readings.get(name, self.readings[name][0])

    def check(self, form: Form) -> None:
        """Refuse a form that the recipe does not have."""
        for name, value in form.readings.items():
            if name not in self.readings:
                raise unknown(f"reading of {self.name}", name, self.readings)
            if value not in self.readings[name]:
                raise unknown(f"reading of {name}", value, self.readings[name])
        if self.minutes[0 if form.quick else 1] is None:
            kind = "quick" if form.quick else "full"
            raise FairleadError(
                f"{self.name} has no {kind} form: run it {'without' if form.quick else 'with'} --quick"
            )
