"""What `fairlead doctor` prints: versions, devices, what is installed and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import fairlead
from fairlead.cli.common import out
from fairlead.data.locations import cache_folder
from fairlead.describe import counted
from fairlead.engine.state.tiers import installed, total_memory
from fairlead.version import __version__

PACKAGES = {
    "matplotlib": "figures",
    "pooch": "downloads of data sets",
    "optuna": "fairlead tune",
    "tensorboard": "--track tensorboard",
    "wandb": "--track wandb",
    "mlflow": "--track mlflow",
    "datasets": "Hugging Face data sets",
    "pyarrow": "Parquet files",
    "pandas": "pandas tables",
    "polars": "polars tables",
}
"""Optional packages, and what each is for; typer and rich are there, or this would not run."""


def say_all() -> None:
    """Print everything."""
    _say(f"fairlead {__version__} in {Path(fairlead.__file__).parent}")
    _say(f"Python {sys.version.split()[0]}, torch {torch.__version__} on {platform.platform()}")
    _say(f"\ncpu: {_cores()}, {installed() / 2**30:.0f} GiB of memory")
    for line in _gpus():
        _say(line)
    _say(f"\ndata sets: {os.environ.get('FAIRLEAD_DATA') or '$FAIRLEAD_DATA is not set'}")
    _say(f"downloads: {cache_folder() or 'not possible without pooch'}")
    found = {name: _version(name) for name in PACKAGES}
    have = [f"{name} {known}" for name, known in found.items() if known is not None]
    out.print(f"\ninstalled: {', '.join(have) or 'none of the optional packages'}", highlight=False)
    missing = [name for name, known in found.items() if known is None]
    for name in missing:
        _say(f"missing: {name}, for {PACKAGES[name]}: pip install {name}")
    if not missing:
        _say("nothing is missing")


def _say(text: str) -> None:
    out.print(text, highlight=False, soft_wrap=True)


def _cores() -> str:
    return counted(len(os.sched_getaffinity(0)), "core")


def _gpus() -> list[str]:
    """A line per GPU, or why there is none."""
    if not torch.cuda.is_available():
        return [
            "cuda: none" + ("" if torch.version.cuda else ", as this torch is built for CPUs only")
        ]
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [
        f"{device}: {torch.cuda.get_device_name(device)}, {total_memory(device) / 2**30:.0f} GiB of memory"
        for device in devices
    ]


def _version(package: str) -> str | None:
    for name in (package, f"{package}-skinny"):  # mlflow has a small edition
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
