"""The base class of trackers: names of the logged values, and failures that do not stop training."""

from __future__ import annotations

import contextlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from fairlead.run.callbacks import Callback
from fairlead.run.folder import TRACK, flat, write_json
from fairlead.run.history import History

COSTS = ("clients", "gradients", "communications", "exchanges", "bits", "bits_up", "bits_down",
         "nominal_up", "seconds")  # fmt: skip
REST = 10.0  # after a failure a tracker pauses for ten times the failure's duration


def tag(column: str) -> str:
    """The name of a history column in a tracker: costs, and the drift of the model and its layers, are
    grouped under a prefix.

    >>> [tag(name) for name in ("loss", "bits_up", "drift", "drift/0.weight")]
    ['loss', 'cost/bits_up', 'drift/model', 'drift/0.weight']
    """
    if column == "drift":
        return "drift/model"
    return f"cost/{column}" if column in COSTS else column


def settings(about: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """A run's settings by dotted name, without the split's table; lists as JSON.

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
    """The best finite value of every metric whose direction is known.

    >>> best(History([{"round": 0, "loss": 2.0, "bits": 8}, {"round": 1, "loss": 1.0, "bits": 9}]))
    {'loss': 1.0}
    """
    found = {}
    for name in history:
        values = history[name]
        values = values[np.isfinite(values)]
        better = history.direction(name)
        if len(values) and better is not None:
            found[name] = float(values.max() if better == "higher" else values.min())
    return found


class Tracker(Callback, ABC):
    """Logs a run to another program. Rows that fail to send are queued and retried later and at the
    end; training continues, with one warning.

    folder: the run's folder, if it has one; it stores what is needed to continue a resumed run.
    """

    name = "the tracker"

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder) / TRACK
        self.about: Mapping[str, Any] = {}
        self.after = -1
        """The round after which a resumed run continues, or −1."""
        self._is_open, self._known, self._warned, self._paused_until = False, -1.0, False, 0.0
        self._pending: list[dict[str, float]] = []
        self._seen = History()

    # -- implemented by trackers --------------------------------------------------------------------

    @abstractmethod
    def open(self, first: int) -> float:
        """Connect, for rows from round `first` on; return the last round already logged there."""

    @abstractmethod
    def send(self, row: Mapping[str, float]) -> None:
        """Log one row."""

    @abstractmethod
    def close(self, why: str, best: Mapping[str, float]) -> None:
        """Log why the run ended and the best values of its metrics, and disconnect."""

    def drop(self) -> None:
        """Disconnect after a failure."""

    # -- called by a run ----------------------------------------------------------------------------

    def begin(self, about: Mapping[str, Any], history: History) -> None:
        self.about, self.after = about, int(about.get("after", -1))
        self._is_open, self._known, self._paused_until = False, -1.0, 0.0
        self._pending = [dict(row) for row in history.rows]
        self._seen = History(list(history.rows), history.better)
        self._deliver()

    def row(self, row: Mapping[str, float]) -> None:
        self._pending.append(dict(row))
        self._seen.append(row)
        if monotonic() >= self._paused_until:
            self._deliver()

    def end(self, run: Any) -> None:
        self._end(run.stopped)

    def failed(self, error: BaseException) -> None:
        message = " ".join(str(error).split()) or type(error).__name__
        self._end("interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {message}")

    def _end(self, why: str) -> None:
        if self.about and self._deliver():
            try:
                self.close(why, best(self._seen))
            except Exception as error:
                self._disconnect(error)

    def _deliver(self) -> bool:
        """Send the pending rows; returns whether that succeeded."""
        begin = monotonic()
        try:
            if not self._is_open:
                first = self._pending[0]["round"] if self._pending else self.after + 1
                self._known = max(self._known, self.open(int(first)))
                self._is_open = True
            while self._pending:
                row = self._pending[0]
                if row["round"] > self._known:
                    self.send(row)
                    self._known = row["round"]
                del self._pending[0]
        except Exception as error:
            self._disconnect(error)
            now = monotonic()
            self._paused_until = now + max(1.0, REST * (now - begin))
            return False
        return True

    def _disconnect(self, error: Exception) -> None:
        self._is_open = False
        with contextlib.suppress(Exception):
            self.drop()
        if not self._warned:
            self._warned = True
            message = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(
                f"{self.name} failed ({message[:300]}): training continues, and unsent rows are retried",
                stacklevel=2,
            )

    # -- stored for a resumed run -------------------------------------------------------------------

    def remembered(self, file: str) -> dict[str, Any]:
        """What an earlier part of this run stored."""
        if self.folder is None or self.after < 0:
            return {}
        try:
            stored = json.loads((self.folder / file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return stored if isinstance(stored, dict) else {}

    def remember(self, file: str, value: Mapping[str, Any]) -> None:
        """Store a value for a later part of this run."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / file, dict(value))
