"""Stopping a run between two rounds on Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Stop:
    """Inside its block, Ctrl-C and SIGTERM set `asked` instead of ending the process; a second signal
    interrupts it at once. Only the main thread can handle signals; elsewhere nothing changes."""

    def __init__(self, listen: bool) -> None:
        self.asked = False
        self.listen = listen and threading.current_thread() is threading.main_thread()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        if self.listen:
            for kind in (signal.SIGINT, signal.SIGTERM):
                self._before[kind] = signal.signal(kind, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
