"""Measurements of ways to run, kept for the process and in a small file in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fairlead.engine.session import Session

_KNOWN: dict[str, dict[str, float]] = {}


def key_of(session: Session, shape: tuple[int, ...], how: Any) -> str:
    """What a measurement depends on."""
    task = session.task
    device = torch.cuda.get_device_name(task.device) if task.device.type == "cuda" else "cpu"
    shapes = [tuple(t.shape[1:]) for t in task.data]
    parts = (repr(task.model), task.dim, shape, shapes, str(task.dtype), device, how,
             torch.get_num_threads(), session.group.size, torch.__version__)  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _busy() -> bool:
    """Whether other work keeps measurements on this machine from being right."""
    try:
        return os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return False


def _file() -> Path:
    home = os.environ.get("FAIRLEAD_CACHE") or os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(home).expanduser() / "fairlead" / "engine.json"


def known(key: str) -> dict[str, float] | None:
    """A measurement, if it was made before."""
    if key not in _KNOWN:
        with suppress(OSError, ValueError, AttributeError, RecursionError):
            found = json.loads(_file().read_text()).items()
            _KNOWN.update({k: v for k, v in found if _is_measurement(v)})
    return _KNOWN.get(key)


def _is_measurement(value: Any) -> bool:
    return (
        bool(value)
        and isinstance(value, dict)
        and all(isinstance(seconds, float) and seconds > 0 for seconds in value.values())
    )


def remembered(key: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """A measurement, made once and kept for the process and in the user's cache."""
    if known(key) is None:
        _KNOWN[key] = measure()
        if _busy():
            return _KNOWN[key]  # good for now, but not for the file
        file = _file()
        with suppress(OSError):  # a cache that cannot be written is no reason to stop
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(_KNOWN))
            part.replace(file)
    return _KNOWN[key]
