"""What this machine can do: its matmul rate and copy bandwidth, measured."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.workloads import Workload
from fairlead.errors import FairleadError
from fairlead.gradients.products import multiplied

FAR = 1 << 28  # bytes that no cache holds
NEAR = 1 << 18  # fewer take no longer than the call

STAT = Path("/proc/stat")


@dataclass
class Machine:
    """Rates in FLOPs and bytes a second; `copies` are bandwidths by the size of what is copied."""

    device: str
    name: str
    threads: int
    rate: float
    """Of a large product in float32."""
    convolution_rate: float
    """Of the same as convolutions may compute it: on CUDA in TF32, which cuDNN takes by default."""
    copies: dict[int, float] = field(default_factory=dict)
    load: float = 0.0
    """How busy the machine was with other work, in cores."""

    @classmethod
    def measured(cls, device: str) -> Machine:
        """This machine."""
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise FairleadError("torch sees no CUDA device here: use --device cpu")
        busy = load()
        rate = other = matmul_rate(device)
        if device != "cpu" and torch.backends.cudnn.allow_tf32:
            before = torch.backends.cuda.matmul.allow_tf32
            torch.backends.cuda.matmul.allow_tf32 = True
            other = max(rate, matmul_rate(device))
            torch.backends.cuda.matmul.allow_tf32 = before
        machine = cls(device, name_of(device), torch.get_num_threads(), rate, other, load=busy)
        machine.bandwidth(FAR)
        return machine

    def bandwidth(self, size: int) -> float:
        """Bytes read and written a second when `size` bytes are copied again and again: from cache
        where they fit. On a GPU small copies only tell how long a call takes."""
        size = FAR if self.device != "cpu" else min(FAR, max(NEAR, size))
        if size not in self.copies:
            a = torch.ones(size // 4, device=self.device)
            b = torch.empty_like(a)
            rate = 2 * size / _best(lambda: b.copy_(a), self.device)
            self.copies[size] = max(rate, self.copies.get(FAR, 0.0))
        return self.copies[size]

    def floor(self, work: Workload) -> tuple[float, float]:
        """The seconds below which no round can be: for its arithmetic, and for its bytes. Samples come
        from main memory, weights from wherever a client's vector fits."""
        count = work.count
        arithmetic = count.products / self.rate + count.convolutions / self.convolution_rate
        near = self.bandwidth(4 * work.dim)
        return arithmetic, count.data / self.bandwidth(FAR) + count.weights / near

    def about(self) -> dict[str, Any]:
        """For the report."""
        known = asdict(self)
        known["copies"] = {str(size): rate for size, rate in sorted(self.copies.items())}
        return {**known, "torch": torch.__version__, "python": platform.python_version()}


def matmul_rate(device: str, dtype: torch.dtype = torch.float32) -> float:
    """FLOPs a second of a large product."""
    n = 2048 if device == "cpu" else 8192
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    seconds = _best(lambda: torch.mm(a, b, out=out), device)
    if device == "cpu":  # torch has two libraries there
        seconds = min(seconds, _best(lambda: multiplied(a, b), device))
    return 2 * n**3 / seconds


def _best(run: Callable[[], object], device: str, seconds: float = 1.0) -> float:
    """The shortest of repeated calls."""
    run()
    best, begin = float("inf"), time.perf_counter()
    for k in range(2000):
        if k >= 8 and time.perf_counter() - begin > seconds:
            break
        if device == "cpu":
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
        else:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            marks[0].record()
            run()
            marks[1].record()
            torch.cuda.synchronize()
            best = min(best, marks[0].elapsed_time(marks[1]) / 1e3)
    return best


def load(seconds: float = 0.5) -> float:
    """How many cores other work keeps busy now; 0 where the system does not say."""
    if not STAT.exists():
        return 0.0
    begin = _idle()
    time.sleep(seconds)
    idle, total = (after - before for after, before in zip(_idle(), begin, strict=True))
    return (os.cpu_count() or 1) * (1 - idle / total) if total else 0.0


def _idle() -> tuple[int, int]:
    """Ticks that all cores were idle, and all ticks."""
    ticks = [int(word) for word in STAT.read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def name_of(device: str) -> str:
    """The processor, and nothing that tells whose it is."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    model = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return f"{os.cpu_count()} cores, {model}"
