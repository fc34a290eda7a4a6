"""Triton, if installed; without it, kernel modules can be imported but not run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from torch import Tensor

try:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as language  # pyright: ignore[reportMissingImports]
except ImportError:
    triton = language = None

tl: Any = language
jit: Any = (lambda kernel: kernel) if triton is None else triton.jit

_waiting: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] | None = None
"""Launches whose kernels are compiled instead, while that is so."""


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **how: Any) -> None:
    """Launch a kernel."""
    if _waiting is None:
        kernel[grid](*given, **how)
        return
    types = tuple(t.dtype if isinstance(t, Tensor) else t for t in given)
    _waiting.append((kernel, types, {"grid": grid, **how}))


@contextmanager
def compiled_only() -> Iterator[None]:
    """Kernels launched inside are not run: at its end they are compiled, several at a time, for when they are. What
    they would have written is undefined."""
    global _waiting
    mode: Any = getattr(triton, "AsyncCompileMode", None)
    if mode is None:  # an older Triton compiles one kernel after another
        yield
        return
    _waiting = []
    try:
        yield
        launches, _waiting = _waiting, None
        with ThreadPoolExecutor(os.cpu_count()) as pool, mode(pool, ignore_errors=True):
            for kernel, types, how in launches:
                kernel.warmup(*types, **how)
    finally:
        _waiting = None
