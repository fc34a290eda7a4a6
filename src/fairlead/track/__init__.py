"""Logging runs to TensorBoard, Weights & Biases and MLflow: pass a tracker to `train(callbacks=[…])`.

>>> import tempfile, fairlead as fl
>>> board = fl.track.TensorBoard(tempfile.mkdtemp())
>>> task = fl.problems.theorem2(gradient=10)
>>> fl.train(task, fl.Scaffold(lr=0.1), rounds=3, steps=10, callbacks=[board]).stopped
'rounds'
"""

from __future__ import annotations

from pathlib import Path

from fairlead.errors import FairleadError, unknown
from fairlead.run.callbacks import Callback
from fairlead.run.folder import TRACK
from fairlead.track.mlflow import MLflow
from fairlead.track.tensorboard import TensorBoard
from fairlead.track.tracker import Tracker
from fairlead.track.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB", "trackers"]

KINDS = ("tensorboard", "wandb", "mlflow")


def trackers(text: str, folder: str | Path | None) -> list[Callback]:
    """Trackers from comma-separated names, each with an optional destination after a colon: a folder
    for TensorBoard, a project for W&B, a URI for MLflow. `folder` is the run's, if it has one.

    >>> trackers("", None)
    []
    """
    found: list[Callback] = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        kind, _, destination = part.partition(":")
        if kind not in KINDS:
            raise unknown("tracker", kind, KINDS)
        if kind == "wandb":
            found.append(WandB(destination or "fairlead", folder=folder))
        elif kind == "mlflow":
            found.append(MLflow(destination or None, folder=folder))
        elif destination or folder is not None:
            found.append(TensorBoard(destination or Path(folder or ".") / TRACK))
        else:
            raise FairleadError(
                "tensorboard needs a folder: write tensorboard:FOLDER, or give the run one with --out"
            )
    return found
