"""A progress bar: on a terminal with rich, in a notebook as a line of text; silent elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any


class Progress:
    """Shows the rounds done, rounds per second, loss and accuracy."""

    def __init__(self, show: bool, total: int, label: str) -> None:
        self.total, self.label = total, label
        self._bar: Any = _bar() if show else None
        self._task: Any = None

    @classmethod
    def of(cls, progress: bool | Progress | None, total: int, label: str) -> Progress:
        """From the `progress` argument: None shows it on a terminal and in a notebook."""
        if isinstance(progress, Progress):
            return progress
        show = sys.stderr.isatty() or in_notebook() if progress is None else progress
        return cls(show, total, label)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, shown="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: float, row: Mapping[str, float], label: str | None = None) -> None:
        """Show the latest values."""
        if self._bar is not None:
            names = [n for n in ("loss", "accuracy", "distance") if n in row]
            shown = " ".join(f"{n} {row[n]:.3g}" for n in names[:2])
            self._bar.update(
                self._task, completed=done, shown=shown, description=label or self.label
            )

    def resize(self, total: int) -> None:
        """Change how much there is to do."""
        self.total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def say(self, text: str) -> None:
        """Show what is being prepared, until the next update."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self.label}: {text}")

    def part(self, before: int, label: str, each: float = 1) -> Progress:
        """For a part of the work: its progress is shown here, after `before`. each: what one of its steps is here.

        >>> class Shown(Progress):
        ...     def update(self, done, row, label=None):
        ...         print(done, label)
        >>> with Shown(False, 20, "two runs").part(10, "the second") as part:
        ...     part.update(3, {})
        13 the second
        """
        return _Part(self, before, label, each)


class _Part(Progress):
    def __init__(self, whole: Progress, before: int, label: str, each: float) -> None:
        super().__init__(False, whole.total, label)
        self.whole, self.before, self.each = whole, before, each

    def update(self, done: float, row: Mapping[str, float], label: str | None = None) -> None:
        self.whole.update(self.before + self.each * done, row, label or self.label)

    def say(self, text: str) -> None:
        self.whole.say(f"{self.label}, {text}")


def in_notebook() -> bool:
    """Whether this is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


class _Line:
    """One line of text in a notebook, which needs no widgets; it stays when the work is done."""

    PAUSE = 0.2
    """Seconds between two changes."""

    def start(self) -> None:
        self.handle: Any = None
        self.first = self.changed = time.monotonic()
        self.now: dict[str, Any] = {"completed": 0}

    def add_task(self, description: str, total: int, shown: str) -> int:
        self.now |= {"description": description, "total": total, "shown": shown}
        self._show()
        return 0

    def update(self, task: int, **values: Any) -> None:
        self.now |= values
        if time.monotonic() - self.changed >= self.PAUSE:
            self._show()

    def stop(self) -> None:
        self._show()

    def _show(self) -> None:
        now, spent = self.now, time.monotonic() - self.first
        speed = f"{now['completed'] / spent:.3g}/s" if now["completed"] and spent else ""
        count = f"{int(now['completed'])}/{now['total']}"
        line = "  ".join(filter(None, (now["description"], count, speed, now["shown"])))
        content = {"text/plain": line}
        if self.handle is None:
            from IPython.display import display  # pyright: ignore[reportMissingImports]

            self.handle = display(content, raw=True, display_id=True)
        else:
            self.handle.update(content, raw=True)
        self.changed = time.monotonic()


def _bar() -> Any:
    if in_notebook():
        return _Line()
    try:
        from rich import progress as rich
        from rich.console import Console
    except ImportError:
        return None

    class Speed(rich.ProgressColumn):
        def render(self, task: rich.Task) -> str:
            return f"{task.speed:.3g}/s" if task.speed else ""

    return rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(bar_width=16),
        rich.MofNCompleteColumn(),
        Speed(),
        rich.TextColumn("{task.fields[shown]}"),
        rich.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
