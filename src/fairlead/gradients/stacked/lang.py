"""Triton, where it is installed; a file of kernels can be read without it, but not run."""

from __future__ import annotations

from typing import Any

try:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as language  # pyright: ignore[reportMissingImports]
except ImportError:
    triton = language = None

tl: Any = language
jit: Any = (lambda kernel: kernel) if triton is None else triton.jit
