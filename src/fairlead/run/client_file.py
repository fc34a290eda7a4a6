"""The file with the metrics of every client at a run's last evaluation."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.task.per_client import ClientMetrics

CLIENTS = "clients.npz"


def write_clients(folder: Path, found: ClientMetrics) -> None:
    """Write the metrics, atomically; a run goes on if that fails."""
    part = folder / f"{CLIENTS}.part"
    try:
        with part.open("wb") as file:
            arrays: dict[str, Any] = {"samples": found.samples, **found.values}
            np.savez(file, **arrays)
        part.replace(folder / CLIENTS)
    except OSError as error:
        part.unlink(missing_ok=True)
        warnings.warn(f"cannot write to {folder}: {error.strerror}", stacklevel=2)


def read_clients(folder: Path) -> dict[str, NDArray[Any]]:
    """Test samples and metrics of every client, by name; empty if there are none."""
    try:
        with np.load(folder / CLIENTS) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile):
        return {}
