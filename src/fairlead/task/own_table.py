"""A table of one's own as a task of the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fairlead.data import tables
from fairlead.errors import FairleadError, unknown
from fairlead.task import models
from fairlead.task.names import mlp_widths, split_by_name
from fairlead.task.task import Task


def csv(
    file: str | None = None,
    target: str | None = None,
    client: str | None = None,
    features: str | None = None,
    scale: bool = True,
    loss: str | None = None,
    hold_out: float = 0.2,
    clients: int | None = None,
    split: str | None = None,
    split_value: float | None = None,
    split_seed: int = 0,
    model: str = "softmax",
    l2: float = 0.0,
    valid: float | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Task:
    """Your own table, a CSV or Parquet file: `--task-set file=people.csv,target=sick,client=town`.

    client: the column that names each row's client; without it rows are split at random, or as `--split` says.
    features: the input columns, joined by +; by default all others. loss: by default cross-entropy for classes (whole
    numbers and strings) and squared error for other numbers. hold_out: the share of every client's rows to test on."""
    if file is None or target is None:
        raise FairleadError(
            "the task csv needs a file and a target: --task-set file=people.csv,target=sick,client=town"
        )
    path, target = Path(str(file)), str(target)
    table = tables.read_parquet(path) if path.suffix == ".parquet" else tables.read_csv(path)
    owner = None if client is None else str(client)
    names = None if features is None else str(features).split("+")
    if names is None:
        names = [name for name in table if name not in (target, owner)]
    x, y = tables.features(table, names, scale), tables.column(table, target)
    code = tables.coding(y, loss)
    groups = None
    if owner is not None:
        found = np.unique(tables.column(table, owner), return_inverse=True)[1]
        groups = torch.from_numpy(found.reshape(-1))
    split = split or ("iid" if groups is None else "by-id")
    if split == "by-id" and clients is not None:
        raise FairleadError("by-id gets its clients from the data: leave out clients")
    if code.classes is None and split not in ("by-id", "iid"):
        raise FairleadError(
            f"the target {target} is a number, but the split {split} needs classes: use --split iid"
        )
    labels = np.zeros(len(y), dtype=int) if code.classes is None else code(y).numpy()
    owners = split_by_name(split, labels, clients or 10, split_value, split_seed, groups)
    return Task.from_arrays(
        x, y if code.classes is None else y.astype(str), clients=owners, loss=loss,
        model=_model(model, x.shape[1], 1 if loss == "logistic" else code.classes or 1),
        hold_out=hold_out, seed=split_seed, l2=l2, valid=valid, dtype=dtype, device=device, name=path.stem,
    )  # fmt: skip


def _model(name: str, inputs: int, outputs: int) -> models.Maker:
    if name == "softmax":
        return models.softmax_regression(inputs, outputs)
    widths = [64] if name == "mlp" else mlp_widths(name)
    if widths is None:
        raise unknown("model", name, ["softmax", "mlp"])
    return models.mlp(inputs, *widths, outputs)
