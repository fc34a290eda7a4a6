"""One autotuner for all choices of how to run: candidates are timed on the task's own shapes.

A measurement takes a few local steps. Its result is kept (`fairlead.engine.measurements`), so that equal runs choose
equally; what was chosen is kept in the run's checkpoints.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.data.batches import Draw
from fairlead.engine.api import Executor, Ids, Request
from fairlead.engine.executors import OneByOne, StackedExecutor, unstackable
from fairlead.engine.expected import dry_round, round_cost
from fairlead.engine.group import Group
from fairlead.engine.measurements import key_of, remembered
from fairlead.engine.session import Execution, Session
from fairlead.engine.state.store import Keep
from fairlead.errors import FairleadError
from fairlead.gradients.cuda_graph import captured
from fairlead.gradients.deferred import LEAST_DIM
from fairlead.gradients.form import ANY, Form
from fairlead.gradients.oracle import Gradients, ways
from fairlead.gradients.products import onednn_is_faster
from fairlead.task.task import Block, Task

STEPS = 6
"""Local steps that are timed: enough for what a client costs at its start and end."""
TURNS, SECONDS = 7, 1.0
"""Timed turns of every candidate at most, and for about how long."""
SMALL = 1 << 20
"""Multiplications per step below which threads and measurements only cost time."""
EQUAL = 1.05
"""Up to this ratio two times count as the same."""
NEAR = 1.1
"""Up to this ratio, what is a little slower before it is compiled may be compiled."""
FEW = 3
"""Clients up to which gradients by `vmap` are tried too on a GPU where there are those by layers, which are faster for many."""
WIDTHS = 8
"""Batch widths that are captured, at most."""
FEW_CALLS = 256
"""Gradients from which capturing pays for small problems; for others it always does."""
COMPILING, PER_LAYER, SHARE = 5.0, 0.2, 0.1
"""Seconds that `torch.compile` takes, more of them per layer, and the share of the run that they may take."""


def is_small(task: Task, clients: int, draw: Draw) -> bool:
    """Whether a step is so little work that threads and measurements only cost time."""
    return task.dim * clients * draw.index.shape[-1] < SMALL


@dataclass(frozen=True)
class Problem:
    """A run for which the fastest way is to be found.

    ids, draw: the first cohort and its batches. shape: that of the whole cohort's batches, where this
    process has a part of it. rounds: of the whole run. room: clients that fit in memory together.
    captures: exchanges are captured as CUDA graphs.
    """

    session: Session
    mode: str
    precision: str
    compile: Any
    ids: Ids
    draw: Draw
    shape: tuple[int, ...]
    rounds: int
    room: int
    captures: bool

    @property
    def half(self) -> bool:
        """Whether gradients are computed in bfloat16."""
        return self.precision == "bfloat16"


def chosen(p: Problem) -> Execution:
    """The fastest way to run a cohort like this one."""
    mode, why, form = p.mode, f"{p.mode}, as asked for", Form(half=p.half)
    found = None
    if p.captures:
        found = _graph_form(p)
    if found is not None:
        mode, form, why = "vmap", found[0], found[1] or why
    elif mode != "debug":
        forms = _forms(p)
        if mode == "auto":
            mode, form, why = _fastest(p, forms)
        else:
            form = forms[mode]
            if mode == "vmap" and not p.session.task.capturable:
                _refuse_what_vmap_cannot(p, form)
            if mode == "vmap" and p.session.task.hooked:
                why += "; the model's hooks are called once for all clients"
        if mode == "loop" and form.deferred == "products" and _products_reused(p, form):
            form = dataclasses.replace(form, deferred="sums")
    if form.onednn:
        why += "; products by oneDNN"
    if mode == "vmap" and p.room < len(p.ids):
        why += f", {p.room} of {len(p.ids)} clients at a time"
    known: Any = mode
    return Execution(known, p.room, form, why, p.session.group.size)


def _forms(p: Problem) -> dict[str, Form]:
    """How gradients are computed in each mode, but for what is measured."""
    task, count = p.session.task, p.draw.count
    calls = p.rounds * count.shape[1]
    small = is_small(task, len(p.ids), p.draw)  # what changes bits must not depend on p.rounds
    widths = {}
    for mode, seen in (("vmap", count.max(0)), ("loop", count.reshape(-1))):
        values, often = np.unique(seen[seen > 0], return_counts=True)
        order = np.argsort(-often, kind="stable")[: WIDTHS - 1]
        full = [int(task.sizes[0])] if task.split.even else []
        many = calls * (len(p.ids) if mode == "loop" else 1) >= FEW_CALLS
        captured = many or not small
        widths[mode] = tuple(sorted({*values[order].tolist(), *full})) if captured else ()
    late: Any = ""
    if task.device.type == "cpu" and task.dim >= LEAST_DIM and not small:
        late = "products" if task.capturable else "sums"
    single = task.dtype == torch.float32 and not p.half
    fast = task.device.type == "cpu" and task.capturable and single and not small
    fast = fast and onednn_is_faster()
    common: dict[str, Any] = {"half": p.half, "kernels": not small, "onednn": fast}
    return {
        "vmap": Form(capture=widths["vmap"], **common),
        "loop": Form(capture=widths["loop"], deferred=late, **common),
    }


def _fastest(p: Problem, forms: dict[str, Form]) -> tuple[str, Form, str]:
    """The faster mode, its form, and why."""
    task = p.session.task
    if why := unstackable(task, p.draw):
        return "loop", forms["loop"], f"loop: {why}"
    if task.hooked:
        return "loop", forms["loop"], "loop: the model's hooks are called for each client"
    if is_small(task, len(p.ids), p.draw):
        trial = Trial(p.session, forms["vmap"], "vmap", p.room)
        try:
            trial.seconds(p.ids, p.draw)
        except RuntimeError as error:
            return "loop", forms["loop"], f"loop: vmap cannot run the model: {_sentence(error)}"
        return "vmap", forms["vmap"], "vmap: a small problem"

    def measured() -> dict[str, float]:
        trials = {mode: Trial(p.session, form, mode, p.room) for mode, form in forms.items()}
        return timed({mode: lambda t=t: t.seconds(p.ids, p.draw) for mode, t in trials.items()})

    seconds = remembered(key_of(p.session, p.shape, forms), measured)
    best = min(seconds, key=lambda mode: seconds[mode])
    if p.session.group.size > 1 and seconds["loop"] < EQUAL * seconds[best]:
        best = "loop"  # whose clients can be taken one by one by whichever process is free
    shown = ", ".join(f"{name} {value * 1e3:.3g} ms" for name, value in seconds.items())
    return best, forms[best], f"{best}: measured for the first local steps of the cohort: {shown}"


def _refuse_what_vmap_cannot(p: Problem, form: Form) -> None:
    """Raise an error if vmap was asked for and cannot run a step of the user's own model."""
    if unstackable(p.session.task, p.draw):
        return  # which is said elsewhere
    try:
        Trial(p.session, form, "vmap", p.room).seconds(p.ids, p.draw, steps=1)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise FairleadError(
            f'vmap cannot run the model for several clients at once: {_sentence(error)}; use engine="loop"'
        ) from error


def _sentence(error: RuntimeError) -> str:
    if "data-dependent control flow" in str(error):
        return "its Python code looks at the values of tensors"
    return str(error).split(". ")[0].split("\n")[0].rstrip(".")


# -- trials ---------------------------------------------------------------------------------------


class _Moved(Upload):
    y: Tensor


class Walk(Algorithm[State, Memory]):
    """What is timed: a few local steps of SGD, from a shared point and from own ones."""

    def init(self, x: Tensor) -> State:
        return State(x=x)

    def round(self, s: State, cohort: Cohort) -> State:
        return s

    def local(self, client: Client[Any], x: Tensor) -> _Moved:
        y = x
        for step in client.steps(1e-3):
            y = y - step.lr * step.grad(y)
        return _Moved(y=y)


class Trial:
    """A session of its own, on which one way to run is timed."""

    def __init__(self, like: Session, form: Form, mode: str, room: int) -> None:
        task = like.task
        keep = Keep(task.clients, task.device)
        self.session = Session(task, Walk(), like.batches, like.weights, like.seed, keep, Group())
        self.session.identities = like.identities
        self.session.gradients = Gradients(task, form)
        self.executor: Executor = (
            StackedExecutor(self.session, room) if mode == "vmap" else OneByOne(self.session)
        )

    def seconds(self, ids: Ids, draw: Draw, steps: int = STEPS) -> float:
        """Seconds for the first local steps of some clients."""
        task = self.session.task
        few = Draw(draw.index[:, :steps], draw.count[:, :steps])
        weights = torch.full((len(ids),), 1 / len(ids), dtype=task.dtype, device=task.device)
        x = task.start(self.session.seed)[0]
        request = Request("local", {"x": x}, 0, 0, ids, weights, lambda _: few)
        begin = time.perf_counter()
        self.executor.execute(request)
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
        return time.perf_counter() - begin


def timed(ways: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The median seconds of each way. They take turns, so that a busy moment hits none alone; the first
    turn warms up, one that is far behind drops out, and one that fails counts as infinite."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    left, begin = list(ways), time.perf_counter()
    for turn in range(TURNS + 1):
        for name in list(left):
            try:
                taken[name].append(ways[name]())
            except RuntimeError:  # an operator that vmap does not know
                left.remove(name)
        begin = time.perf_counter() if turn == 0 else begin
        if turn:
            best = min((taken[name][-1] for name in left), default=0.0)
            left = [name for name in left if taken[name][-1] < 3 * best]
        if turn > 1 and time.perf_counter() - begin > SECONDS:
            break
    return {name: statistics.median(t[1:]) if t[1:] else math.inf for name, t in taken.items()}


def _products_reused(p: Problem, form: Form) -> bool:
    """Whether the method needs a gradient twice: found out by a dry round of one client's first steps."""
    gradients = Gradients(p.session.task, form)
    draw = Draw(p.draw.index[:1, :3], p.draw.count[:1, :3])
    dry_round(p.session, gradients, p.ids[:1], draw)
    return gradients.space.products_reused


# -- on a GPU -------------------------------------------------------------------------------------


def _graph_form(p: Problem) -> tuple[Form, str] | None:
    """The fastest form inside a captured graph, and why; None if rounds cannot be captured."""
    session, task = p.session, p.session.task
    if task.ahead or task.hooked or p.room < len(p.ids) or unstackable(task, p.draw):
        return None
    asked = p.compile in (True, "tuned")
    plain = [dataclasses.replace(f, half=p.half, capture=(ANY,)) for f in ways(task)]
    if task.device.type != "cuda":  # tests replay rounds on a CPU
        return dataclasses.replace(plain[0], compiled=asked), ""
    if is_small(task, len(p.ids), p.draw):
        plain = plain[:1]
    key, example = f"form {key_of(session, p.shape, plain)} {p.precision}", _example(p)
    with suppress(RuntimeError, ImportError):  # which is found out when it is timed
        Gradients(task, plain[-1]).compile_kernels(*example)

    def measured() -> dict[str, float]:
        found = _in_graphs(p, plain[-1:], example)
        if len(p.ids) <= FEW or math.isinf(*found.values()):
            found |= _in_graphs(p, plain[:-1], example)
        return found

    found = remembered(key, measured)
    made = _to_compile(plain, found)
    best = min(found, key=lambda name: found[name])
    if math.isinf(found[best]):
        return None
    shown = ", ".join(f"{name} {value * 1e3:.3g} ms" for name, value in found.items())
    why = f"measured for one gradient of the cohort: {shown}"
    if asked and task.capturable:
        return made, f"{made}, as asked for; {why}"
    layers = sum(not list(module.children()) for module in task.model.modules())
    able = p.compile == "auto" and task.capturable and find_spec("triton") is not None
    if able and COMPILING + PER_LAYER * layers < SHARE * p.rounds * _round_seconds(p, found[best]):
        return made, f"{made}: a long run; {why}"
    return {str(form): form for form in plain}[best], f"{best}: {why}"


def _round_seconds(p: Problem, gradient: float) -> float:
    """How long a round is expected to take if a gradient of the cohort takes so long."""
    try:
        return round_cost(p.session, p.ids, p.draw).seconds(gradient, len(p.ids))
    except Exception:  # of a method of one's own that cannot do with gradients of zero
        return gradient * p.draw.longest


def _to_compile(forms: Sequence[Form], seconds: dict[str, float]) -> Form:
    """What is best as it is is also compiled; of two that are nearly equal the layers of many clients, `forms`' last."""
    least = min(seconds.values())
    near = [form for form in forms if seconds.get(str(form), math.inf) <= NEAR * least]
    return dataclasses.replace(near[-1], compiled=True)


def _example(p: Problem) -> tuple[Tensor, Block, Tensor | None, Tensor]:
    """What the first gradient of the cohort is given."""
    task, s = p.session.task, len(p.ids)
    x, buffers = task.start(p.session.seed)
    points, rows = x.expand(s, -1).clone(), buffers.expand(s, -1).clone()
    owners = torch.from_numpy(p.ids).to(task.store)
    even = bool((p.draw.count[:, 0] == p.draw.index.shape[2]).all())
    block = task.samples(owners, p.draw.index[:, 0].to(task.store))
    weights = None if even else torch.full(block[0].shape[:2], 1 / block[0].shape[1]).to(x)
    return points, block, weights, rows


def _in_graphs(p: Problem, forms: Iterable[Form], example: tuple[Any, ...]) -> dict[str, float]:
    """Seconds of a captured gradient in each form."""
    found: dict[str, float] = {}
    for form in forms:
        found[str(form)] = math.inf
        with suppress(RuntimeError, ImportError):  # an operator that a form does not know
            oracle = Gradients(p.session.task, form)
            found[str(form)] = _replayed(lambda o=oracle: o.stacked(*example))
    return found


def _replayed(gradient: Callable[[], tuple[Tensor, Tensor]]) -> float:
    kept: list[Any] = []

    def run() -> None:
        kept[:] = gradient()

    with torch.no_grad():
        for _ in range(2):
            run()
        replay = captured(run)
        times = []
        for _ in range(7):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)
