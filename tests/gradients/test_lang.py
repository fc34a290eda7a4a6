"""Kernels that are compiled before they are run; Triton and its kernels are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fairlead.gradients.stacked import compiled_only, lang


class Kernel:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.compiled: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *given, **how: self.ran.append((grid, given, how))

    def warmup(self, *types: Any, grid: tuple[int, ...], **how: Any) -> None:
        """Compile for arguments of these types."""
        self.compiled.append((grid, types, how))


class Mode:
    """Compiles in the threads of a pool, and waits at its end."""

    def __init__(self, pool: Any, ignore_errors: bool) -> None:
        assert ignore_errors

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, *error: Any) -> None:
        """Wait."""


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lang, "triton", SimpleNamespace(AsyncCompileMode=Mode))


@pytest.mark.usefixtures("triton")
def test_kernels_are_compiled_at_the_end_and_not_run() -> None:
    kernel, x = Kernel(), torch.ones(3, dtype=torch.bfloat16)
    with compiled_only():
        lang.launch(kernel, (2, 1), x, 5, True, num_warps=4)
        assert not kernel.compiled
    assert kernel.compiled == [((2, 1), (torch.bfloat16, 5, True), {"num_warps": 4})]
    assert not kernel.ran
    lang.launch(kernel, (7,), 1, stages=2)
    assert kernel.ran == [((7,), (1,), {"stages": 2})]


@pytest.mark.usefixtures("triton")
def test_after_an_error_kernels_are_run_again() -> None:
    kernel = Kernel()

    def fails() -> None:
        with compiled_only():
            lang.launch(kernel, (1,), 1)
            raise RuntimeError("vmap")

    with pytest.raises(RuntimeError, match="vmap"):
        fails()
    assert not kernel.compiled
    lang.launch(kernel, (1,), 1)
    assert kernel.ran


def test_an_older_triton_compiles_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lang, "triton", SimpleNamespace())
    kernel = Kernel()
    with compiled_only():
        lang.launch(kernel, (1,), 1)
    assert kernel.ran
