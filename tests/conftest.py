"""Fixtures and the tasks that several tests share."""

from __future__ import annotations

import functools
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fairlead as fl

if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # so do jobs in the background, and what they start
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["FAIRLEAD_CACHE"] = tempfile.mkdtemp()  # measurements of this machine stay out of tests


def pytest_configure() -> None:
    """Attacks that run at the same time write to one table.

    Hypothesis judges what a property says, not how long an example takes on a busy machine, and tries the same
    examples every time, so that a change is judged by itself; with EXPLORE=1 it looks for new ones."""
    os.environ.setdefault("CHAOS_TABLE", os.path.join(tempfile.mkdtemp(), "table.jsonl"))
    from hypothesis import HealthCheck, settings  # not needed where this module is only imported

    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    same = not os.environ.get("EXPLORE")
    settings.register_profile(
        "fairlead", deadline=None, suppress_health_check=checks, derandomize=same
    )
    settings.load_profile("fairlead")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`-m slow` also selects slow tests for a GPU, which need one."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table of the attacks in tests/chaos, if there were any."""
    from campaign import table

    if found := table(Path(os.environ["CHAOS_TABLE"])):
        terminalreporter.section("the campaign")
    for line in found:
        terminalreporter.write_line(line)


DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The devices a test runs on; the GPU only with `-m gpu`."""
    return request.param


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """A run leaves torch's number of threads as it found it."""
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


TOY_A, TOY_B = np.array([1.0, 3.0, 0.5, 2.0]), np.array([-1.0, 1.0, 4.0, -3.0])


def toy(start: float = 0.0, **settings: object) -> fl.Task:
    """The 4-client toy: f_i(x) = a_i/2·(x − b_i)²."""
    return fl.problems.quadratics(
        TOY_A[:, None, None], (TOY_A * TOY_B)[:, None], [start], **settings
    )


def uneven(
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
    sizes: tuple[int, ...] = (7, 4, 6, 1, 11),
) -> fl.Task:
    """A small network on random data, with clients of very different sizes."""
    rng = np.random.default_rng(3)
    n = sum(sizes)
    x, y = torch.tensor(rng.normal(size=(n, 5))), torch.tensor(rng.integers(0, 3, n))
    ends = np.cumsum(sizes)
    owners = [np.arange(e - s, e) for s, e in zip(sizes, ends, strict=True)]
    return fl.Task(
        fl.models.mlp(5, 6, 3), "cross_entropy", (x, y), owners, test=(x, y), l2=0.01,
        dtype=dtype, device=device,
    )  # fmt: skip


shared = functools.cache(uneven)  # what was recorded for a shape serves the next test too


@pytest.fixture
def quick_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files need not survive a power failure."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
