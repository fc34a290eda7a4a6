"""Triton, if installed; without it, kernel modules can be imported but not run."""

from __future__ import annotations

from typing import Any

try:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as language  # pyright: ignore[reportMissingImports]
except ImportError:
    triton = language = None

tl: Any = language
jit: Any = (lambda kernel: kernel) if triton is None else triton.jit
