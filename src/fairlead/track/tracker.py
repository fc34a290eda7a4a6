"""What all trackers share: which numbers go where, and that their failures end no training."""

from __future__ import annotations

import contextlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlead.run.callbacks import Callback
from fairlead.run.folder import TRACK, flat, write_json
from fairlead.run.history import History
from fairlead.task.losses import better_larger

if TYPE_CHECKING:
    from fairlead.run.train import Run

COSTS = ("clients", "gradients", "communications", "exchanges", "bits", "bits_up", "bits_down",
         "nominal_up", "seconds")  # fmt: skip
REST = 10.0  # a tracker that fails rests ten times as long as its failure took


def tag(column: str) -> str:
    """The name of a history's column in a tracker: what a run costs, and the drift of the whole model
    and of its layers, each in a group of their own.

    >>> [tag(name) for name in ("loss", "bits_up", "drift", "drift/0.weight")]
    ['loss', 'cost/bits_up', 'drift/model', 'drift/0.weight']
    """
    if column == "drift":
        return "drift/model"
    return f"cost/{column}" if column in COSTS else column


def settings(about: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """What a run is set up with by dotted names, without the split's table; lists as JSON.

    >>> settings({"label": "FedAvg", "method": {"lr": 0.1, "mu": None, "layers": [1, 2]}})
    {'label': 'FedAvg', 'method.lr': 0.1, 'method.layers': '[1, 2]'}
    """
    table = ("split.counts", "split.classes")
    kept = {k: v for k, v in flat(about).items() if v is not None and k not in table}
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in kept.items()
    }


def best(history: History) -> dict[str, float]:
    """The best value of every metric that is finite somewhere.

    >>> best(History([{"round": 0, "loss": 2.0, "bits": 8}, {"round": 1, "loss": 1.0, "bits": 9}]))
    {'loss': 1.0}
    """
    found = {}
    for name in history:
        values = history[name]
        values = values[np.isfinite(values)]
        if len(values) and name not in ("round", *COSTS) and not name.startswith("drift"):
            found[name] = float(values.max() if better_larger(name) else values.min())
    return found


class Tracker(Callback, ABC):
    """Tells a run to another program. Rows that could not be told wait, and are tried again later and
    at the end; the training goes on meanwhile, and one warning says so.

    folder: the run's folder, if it has one; what it takes to go on in the same place is kept there.
    """

    name = "the tracker"

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder) / TRACK
        self.about: Mapping[str, Any] = {}
        self.after = -1
        """The round after which the run goes on from an earlier one, or −1."""
        self._is_open, self._known, self._warned, self._rests_until = False, -1.0, False, 0.0
        self._waiting: list[dict[str, float]] = []
        self._seen = History()

    # -- what a tracker is made of ------------------------------------------------------------------

    @abstractmethod
    def open(self, first: int) -> float:
        """Get ready for rows from a round on; returns the last round that is known there already."""

    @abstractmethod
    def send(self, row: Mapping[str, float]) -> None:
        """Tell one row."""

    @abstractmethod
    def close(self, why: str, best: Mapping[str, float]) -> None:
        """Tell why the run ended and the best values of its metrics, and let go."""

    def drop(self) -> None:
        """Let go after a failure."""

    # -- what a run calls ---------------------------------------------------------------------------

    def begin(self, about: Mapping[str, Any], history: History) -> None:
        self.about, self.after = about, int(about.get("after", -1))
        self._is_open, self._known, self._rests_until = False, -1.0, 0.0
        self._waiting = [dict(row) for row in history.rows]
        self._seen = History(list(history.rows))
        self._deliver()

    def row(self, row: Mapping[str, float]) -> None:
        self._waiting.append(dict(row))
        self._seen.append(row)
        if monotonic() >= self._rests_until:
            self._deliver()

    def end(self, run: Run) -> None:
        self._end(run.stopped)

    def failed(self, error: BaseException) -> None:
        said = " ".join(str(error).split()) or type(error).__name__
        self._end("interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {said}")

    def _end(self, why: str) -> None:
        if self.about and self._deliver():
            try:
                self.close(why, best(self._seen))
            except Exception as error:
                self._went_wrong(error)

    def _deliver(self) -> bool:
        """Tell what waits; whether that went well."""
        begin = monotonic()
        try:
            if not self._is_open:
                first = self._waiting[0]["round"] if self._waiting else self.after + 1
                self._known = max(self._known, self.open(int(first)))
                self._is_open = True
            while self._waiting:
                row = self._waiting[0]
                if row["round"] > self._known:
                    self.send(row)
                    self._known = row["round"]
                del self._waiting[0]
        except Exception as error:
            self._went_wrong(error)
            now = monotonic()
            self._rests_until = now + max(1.0, REST * (now - begin))
            return False
        return True

    def _went_wrong(self, error: Exception) -> None:
        self._is_open = False
        with contextlib.suppress(Exception):
            self.drop()
        if not self._warned:
            self._warned = True
            said = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(
                f"{self.name} failed ({said[:300]}): the training goes on, and what was not told is "
                "tried again",
                stacklevel=2,
            )

    # -- what is remembered for a run that goes on ----------------------------------------------------

    def remembered(self, file: str) -> dict[str, Any]:
        """What an earlier part of this run noted."""
        if self.folder is None or self.after < 0:
            return {}
        try:
            noted = json.loads((self.folder / file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def remember(self, file: str, value: Mapping[str, Any]) -> None:
        """Note something for a later part of this run."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / file, dict(value))
