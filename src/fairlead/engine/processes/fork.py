"""Forking a process that has threads: wait until they are idle, then check that operators work."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from fairlead.errors import FairleadError

REST = 1.0
"""Seconds to wait for other threads to become idle before a fork."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Block signals between a fork and the new process's own signal handling."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            # about threads at a fork: torch's threads are not copied, and workers do not use them
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def forked(*open_ones: socket.socket) -> int:
    try:
        return os.fork()
    except OSError:
        for one in open_ones:
            one.close()
        raise


def ignore_signals() -> None:
    """Ctrl-C and a scheduler's SIGTERM reach all processes; only the first one acts on them."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) or number == signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)


def rest() -> None:
    """Wait until no other thread is running: a fork would inherit its locks and never get them. (A joined
    thread may still be returning memory to MKL.)"""
    until = time.monotonic() + REST
    while time.monotonic() < until and any(map(_computes, os.listdir("/proc/self/task"))):
        time.sleep(1e-3)


def _computes(thread: str) -> bool:
    if int(thread) == os.getpid():
        return False
    try:
        state = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has ended
        return False
    return state == "R"


def check_operators() -> None:
    """Multiply, convolve and differentiate: a fork that inherited a lock gets stuck here."""
    try:
        with torch.enable_grad():
            for dtype in (torch.float32, torch.float64):
                x = torch.ones(128, 512, dtype=dtype, requires_grad=True)
                torch.autograd.grad((x @ x.detach().T).sum(), x)
            image = torch.ones(1, 4, 16, 16, requires_grad=True)
            kernel = torch.ones(4, 4, 3, 3)
            torch.autograd.grad(torch.nn.functional.conv2d(image, kernel).sum(), image)
    except RuntimeError as error:
        raise FairleadError(
            "this process sees a GPU and has computed gradients, after which torch cannot compute them in "
            "forks: train with workers first, or hide the GPU (CUDA_VISIBLE_DEVICES=)"
        ) from error


def is_stopped(process: int) -> bool:
    """Whether a process was stopped by a signal, as by Ctrl-Z."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in ("T", "t")
