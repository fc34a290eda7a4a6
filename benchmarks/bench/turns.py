"""Contestants in processes of their own that take turns: while one runs, the others wait for a line."""

from __future__ import annotations

import json
import math
import os
import queue
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import fairlead
from fairlead.errors import FairleadError

Say = Callable[[str], None]
LIMIT = 1800.0  # seconds for one turn, after which a contestant is taken to hang
LEAST, MOST = 3, 5000  # rounds a turn


@dataclass
class Contestant:
    """Someone who runs rounds: `group` by `form`, such as "pfl" by "2 processes".

    command: what is started; it answers as `peers.plain` says.
    environments: variables of each of its processes.
    more: what is added to the workload.
    """

    group: str
    form: str
    command: Sequence[str]
    environments: Sequence[dict[str, str]] = ({},)
    more: dict[str, Any] = field(default_factory=dict)
    limit: float = LIMIT
    started: list[_Process] = field(default_factory=list, init=False, repr=False)

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(10.0 if kind is None else 0.5)

    def turn(self, work: dict[str, Any], rounds: int, x: bool = False) -> dict[str, Any]:
        """Run so many rounds of a workload now; the answer of the first process."""
        if not self.started:
            self.started = [_Process(self.command, more) for more in self.environments]
        line = json.dumps({"work": {**work, **self.more}, "rounds": rounds, "x": x})
        for process in self.started:
            process.ask(line)
        first, *_ = [self._answer(process) for process in self.started]
        return first

    def _answer(self, process: _Process) -> dict[str, Any]:
        """What a process says, unless it or another one, for which it waits, is gone."""
        end = time.monotonic() + self.limit
        while time.monotonic() < end:
            answer = process.answer(1.0)
            if answer is not None:
                return answer
            for other in self.started:
                if other.process.poll() is not None:
                    raise FairleadError(f"failed: {other.why()}")
        raise FairleadError(f"did not answer in {self.limit:.0f} seconds")

    def stop(self, patience: float = 10.0) -> None:
        """End its processes, by force after so many seconds."""
        for process in self.started:
            process.end(patience)
        self.started = []


class _Process:
    """One process, asked and answering by lines."""

    def __init__(self, command: Sequence[str], more: dict[str, str]) -> None:
        make: Callable[..., IO[str]] = tempfile.TemporaryFile
        self.errors = make("w+", errors="replace")
        try:
            self.process = subprocess.Popen(
                command, env={**os.environ, **more}, text=True, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            )  # fmt: skip
        except OSError as error:
            self.errors.close()
            raise FairleadError(f"could not be started: {error.strerror or error}") from error
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as answers:
            for line in answers:
                self.lines.put(line)
        self.lines.put("")

    def ask(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the answer will say that it is gone
            print(line, file=self.process.stdin, flush=True)

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """Its next answer, if one comes in so many seconds."""
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            return None
        if not line:
            raise FairleadError(f"failed: {self.why()}")
        return json.loads(line)

    def why(self) -> str:
        """The last line of what it complained about, without places on this machine."""
        self.process.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().splitlines() if line.strip()]
        named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        last = (named or lines or [f"it ended with code {self.process.returncode}"])[-1]
        return re.sub(r"(?<![\w.])/[\w.+\-]+(?:/[\w.+\-]+)+", "…", last)[:200]

    def end(self, patience: float) -> None:
        with suppress(OSError, ValueError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.reader.join(1)
        self.errors.close()


@dataclass
class Times:
    """What came out for a contestant: the median round of each turn (the mean where rounds differ, as
    those of a whole run), or why there is none."""

    group: str
    form: str
    turns: list[float] = field(default_factory=list)
    version: str = ""
    note: str = ""
    failed: str = ""

    @property
    def median(self) -> float:
        """Seconds a round; infinite for one that failed."""
        return statistics.median(self.turns) if self.turns and not self.failed else math.inf


def take_turns(
    contestants: Sequence[Contestant],
    work: dict[str, Any],
    repeats: int = 5,
    seconds: float = 1.0,
    say: Say = lambda _: None,
) -> list[Times]:
    """Let everybody warm up, and then run rounds in turns, so that a busy moment hits none alone. A turn
    takes about so many seconds. One who fails is out, with a sentence; the others go on. Processes stay
    until contestants are stopped."""
    found = [Times(c.group, c.form) for c in contestants]
    rounds = [LEAST] * len(found)
    for number in range(-1, repeats):
        for k, (c, times) in enumerate(zip(contestants, found, strict=True)):
            if times.failed:
                continue
            turn = "warms up" if number < 0 else f"turn {number + 1} of {repeats}"
            say(f"{c.group} ({c.form}) {turn}")
            try:
                if number < 0:
                    rounds[k] = _warm_up(c, work, seconds)
                    continue
                answer = c.turn(work, rounds[k])
                mean = statistics.fmean if work["rounds"] else statistics.median
                times.turns.append(mean(answer["seconds_per_round"]))
                times.version, times.note = answer["version"], answer["note"]
            except (FairleadError, json.JSONDecodeError, KeyError) as error:
                times.failed = f"{c.group} ({c.form}) {error}"
                c.stop(patience=1.0)
    return found


def _warm_up(c: Contestant, work: dict[str, Any], seconds: float) -> int:
    """Run some rounds, and say how many make a turn."""
    taken = statistics.median(c.turn(work, 2)["seconds_per_round"])
    if work["rounds"]:  # a whole run is a turn
        return work["rounds"]
    rounds = min(MOST, max(LEAST, round(seconds / taken)))
    if rounds > LEAST and c.more.get("device") != "cuda":
        c.turn(work, rounds)
    return rounds


def own(
    group: str, device: str, method: str = "FedAvg", engine: str = "auto", **more: Any
) -> Contestant:
    """A contestant of our own: the bare loop, or fairlead with a method and an engine."""
    here = [Path(fairlead.__file__).parents[1], Path(__file__).parents[1]]  # src and benchmarks
    places = [*map(str, here), *filter(None, [os.environ.get("PYTHONPATH")])]
    base = {"PYTHONPATH": os.pathsep.join(places)}
    environments, form = [base], more.pop("form", engine)
    cores = os.cpu_count() or 1
    if group == "bare loop":
        form = "1 process"
    elif engine == "distributed" and cores > 1:
        port = str(free_ports(1)[0])
        shared = {"WORLD_SIZE": str(cores), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        shared |= {**base, "OMP_NUM_THREADS": "1"}
        environments = [{**shared, "RANK": str(k)} for k in range(cores)]
        form = f"{cores} processes"
    command = [sys.executable, "-P", "-m", "bench.worker"]  # -P: no bench of the current folder
    asked = {"who": group, "device": device, "method": method, "engine": engine, **more}
    return Contestant(group, form, command, environments, asked)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
