"""Logging runs to TensorBoard event files."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.errors import needed
from fairlead.track.tracker import Tracker, settings, tag


class TensorBoard(Tracker):
    """Scalars per round, settings and final metrics for the HPARAMS tab, the reason the run ended as text.

    A folder holds one run: a resumed run replaces the rounds after its checkpoint, and a new run
    replaces an old one.

    >>> import tempfile, fairlead as fl
    >>> board = fl.track.TensorBoard(tempfile.mkdtemp())
    >>> task = fl.problems.theorem2(gradient=10)
    >>> _ = fl.train(task, fl.FedAvg(lr=0.1), rounds=3, steps=10, callbacks=[board])
    """

    name = "TensorBoard"

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.place = Path(folder)
        self._library = needed("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None
        self._end_of_session: Any = None

    def open(self, first: int) -> float:
        exists = self.place.is_dir() and any(self.place.glob("events.out.tfevents.*"))
        resumed = exists and self.after >= 0
        start = max(first, self.after + 1) if resumed else first
        self._writer = self._library.SummaryWriter(
            str(self.place), purge_step=start if exists else None
        )
        self._end_of_session = None
        lines = [f"| {name} | {value} |" for name, value in settings(self.about).items()]
        self._writer.add_text(
            "settings", "\n".join(["| setting | value |", "|---|---|", *lines]), start
        )
        return start - 1

    def send(self, row: Mapping[str, float]) -> None:
        step = int(row["round"])
        values = {tag(name): float(value) for name, value in row.items() if name != "round"}
        if self._end_of_session is None:
            self._begin_session(values)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # so that a killed process loses nothing

    def _begin_session(self, values: dict[str, float]) -> None:
        hparams = needed("torch.utils.tensorboard.summary", "tensorboard").hparams
        shown = {name: 0.0 for name in values if "/" not in name}  # their last values are shown
        *begin, self._end_of_session = hparams(settings(self.about), shown)
        for summary in begin:
            self._writer.file_writer.add_summary(summary, 0)

    def close(self, why: str, best: Mapping[str, float]) -> None:
        step = int(self._known)
        lines = [f"| {name} | {value:g} |" for name, value in best.items()]
        text = "\n".join([why, "", "| metric | best |", "|---|---|", *lines])
        self._writer.add_text("ended", text, step)
        if self._end_of_session is not None and not why.startswith(("failed", "interrupted")):
            self._writer.file_writer.add_summary(self._end_of_session, step)
        self._writer.close()

    def drop(self) -> None:
        writer, self._writer = self._writer, None
        with contextlib.suppress(Exception):
            writer.close()
