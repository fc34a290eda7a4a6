"""Logging runs to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.errors import needed
from fairlead.track.tracker import Tracker, settings, tag

NOTE = "wandb.json"


class WandB(Tracker):
    """Metrics per round, settings as the config; the summary has the reason the run ended and the best
    values.

    mode: "online", "offline" or "disabled"; by default WANDB_MODE, else online.
    folder: the run's folder, which stores W&B's id and files, so that a resumed run continues under
        the same id.
    init: other arguments of `wandb.init`, such as entity, group, tags, name or id.
    """

    name = "W&B"

    def __init__(
        self,
        project: str | None = None,
        *,
        mode: str | None = None,
        folder: str | Path | None = None,
        **init: Any,
    ) -> None:
        super().__init__(folder)
        self._library = needed("wandb")
        self.project, self.mode, self.init = project, mode, init
        self.id: str | None = None
        self._run: Any = None

    def open(self, first: int) -> float:
        noted = self.remembered(NOTE)
        noted = noted if noted.get("project") == self.project else {}
        mine = self.id if self._known >= 0 else None  # reopened after a failure
        given = {"name": self.about.get("label"), "resume": "allow", "reinit": "create_new"}
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            given["dir"] = str(self.folder)
        given["settings"] = self._library.Settings(
            init_timeout=10
        )  # its own default waits for 90 s
        given |= {"id": noted.get("id") or mine, **self.init}
        self._run = self._library.init(project=self.project, mode=self.mode, **given)
        self.id = self._run.id
        self._run.config.update(settings(self.about), allow_val_change=True)
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        known = max(float(noted.get("round", -1)), float(self._run.starting_step) - 1)
        self._note(known)
        return known

    def send(self, row: Mapping[str, float]) -> None:
        values = {tag(name): value for name, value in row.items()}
        self._run.log(values, step=int(row["round"]), commit=True)
        self._note(row["round"])

    def _note(self, round: float) -> None:
        self.remember(NOTE, {"project": self.project, "id": self.id, "round": round})

    def close(self, why: str, best: Mapping[str, float]) -> None:
        self._run.summary["ended"] = why
        for name, value in best.items():
            self._run.summary[f"best/{name}"] = value
        self._finish(255 if why == "interrupted" else int(why.startswith("failed")))

    def drop(self) -> None:
        self._finish(1)

    def _finish(self, code: int) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=code)
