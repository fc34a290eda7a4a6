"""What an attack on running software found, and what holds since."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import shared, uneven
from programs import LIMIT, PATHS
from torch import Tensor, nn
from torch.nn import functional as F

import fairlead as fl
from fairlead.core.tensorfile import write
from fairlead.engine import measurements
from fairlead.gradients import oracle
from fairlead.run.folder import Recorder
from fairlead.run.lock import locked
from fairlead.run.saved import listed, read

WORK = {"cohort": 3, "batch_size": 4, "epochs": 1}
METHOD = fl.Scaffold(lr=0.1)


# -- evaluations that break off --------------------------------------------------------------------


class Breaks(nn.Module):
    """Dropout and BatchNorm; breaks off in a chosen call in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(5, 6), nn.BatchNorm1d(6)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            CALLS.append(1)
            if len(CALLS) == BREAK[0]:
                raise BREAK[1]
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


CALLS: list[int] = []
BREAK: list = [0, KeyboardInterrupt()]


def _breaking() -> fl.Task:
    rng = np.random.default_rng(3)
    x, y = torch.tensor(rng.normal(size=(40, 5))), torch.tensor(rng.integers(0, 3, 40))
    parts = [range(k, k + 10) for k in (0, 10, 20, 30)]
    return fl.Task(Breaks, "cross_entropy", (x, y), parts, dtype=torch.float64, trust=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no")])
@pytest.mark.parametrize("method", [METHOD, fl.Scaffold(lr=0.1, warm_start=True)])
def test_an_evaluation_that_breaks_off_leaves_the_task_as_it_was(error, method, tmp_path) -> None:
    task, work = _breaking(), {"rounds": 5, "cohort": 2, "batch_size": 5, "steps": 2}
    BREAK[:] = [0, error]
    whole = fl.train(task, method, **work)
    CALLS.clear()
    BREAK[0] = 4
    keep = fl.Checkpoints(tmp_path, every=1)
    with pytest.raises(type(error)):
        fl.train(task, method, checkpoints=keep, **work)
    assert task.model.training
    assert not task.evaluation_model.training
    BREAK[0] = 0
    again = fl.train(task, method, checkpoints=keep, resume="auto", **work)
    assert torch.equal(again.x, whole.x)
    assert torch.equal(again.session.buffers, whole.session.buffers)


# -- torch's generator -----------------------------------------------------------------------------


class Always(nn.Module):
    """Draws in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.dropout(x, 0.5))


def _drawing(make=Always) -> fl.Task:
    rng = np.random.default_rng(3)
    x, y = torch.tensor(rng.normal(size=(40, 5))), torch.tensor(rng.integers(0, 3, 40))
    parts = [range(k, k + 10) for k in (0, 10, 20, 30)]
    return fl.Task(make, "cross_entropy", (x, y), parts, test=(x, y), dtype=torch.float64)


def test_the_generator_is_as_it_was_after_every_call(tmp_path) -> None:
    work = {"rounds": 2, "cohort": 2, "batch_size": 5, "steps": 2}
    task, made, runs = _drawing(), Always(), [(fl.FedAvg(lr=lr), 0) for lr in (0.1, 0.2)]
    x = task.start()[0]
    calls = {
        "Task": _drawing,
        "fixed": lambda: _drawing(made),
        "train": lambda: fl.train(task, METHOD, **work),
        "loop": lambda: fl.train(task, METHOD, engine="loop", **work),
        "debug": lambda: fl.train(task, METHOD, engine="debug", **work),
        "workers": lambda: fl.train(task, METHOD, workers=2, **work),
        "train_many": lambda: fl.train_many(task, runs, **work),
        "compare": lambda: fl.compare(task, [fl.FedAvg(lr=0.1)], grid=[0.1, 0.2], **work),
        "tune": lambda: fl.tune(task, fl.FedAvg(lr=0.1), lr=[0.1, 0.2], **work),
        "needs": lambda: fl.needs(task, METHOD, **work),
        "evaluate": lambda: task.evaluate(x),
        "objective": lambda: task.objective(x),
        "client_losses": lambda: task.client_losses(x),
        "to": lambda: task.to(dtype=torch.float32),
        "model": lambda: fl.train(task, METHOD, **work).model(),
        "folder": lambda: fl.train(task, METHOD, out=tmp_path / "r", **work),
        "problem": fl.problems.random_quadratics,
    }
    for name, call in calls.items():
        torch.manual_seed(4)
        before = torch.get_rng_state()
        call()
        assert torch.equal(torch.get_rng_state(), before), name
    assert task.draws_always
    assert task.evaluate(x) == task.evaluate(x)


# -- resuming another problem ----------------------------------------------------------------------


SCALE = 1.0


def _scaled(output: Tensor, target: Tensor) -> Tensor:
    return SCALE * (output[:, 0] - target).square()


def _closed(scale: float):
    def inner(v: Tensor) -> Tensor:
        return scale * v

    return lambda output, target: inner((output[:, 0] - target).square())


class Activated(nn.Module):
    def __init__(self, act, factor: float = 1.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.act, self.factor = act, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.last(self.act(self.first(x)))


def _objective(model=None, loss=None, **more) -> fl.Task:
    torch.manual_seed(0)
    x, y = torch.randn(12, 3), torch.randn(12)
    made = model or Activated(torch.tanh)
    return fl.Task(made, loss or _scaled, (x, y), [range(6), range(6, 12)], **more)


def test_another_objective_is_not_continued(tmp_path, monkeypatch) -> None:
    work = {"cohort": None, "batch_size": 3, "steps": 2}

    def go_on(task: fl.Task, folder: Path) -> fl.Run:
        return fl.train(task, fl.FedAvg(lr=0.01), rounds=4, resume=folder, **work)

    fl.train(_objective(), fl.FedAvg(lr=0.01), rounds=2, checkpoints=tmp_path / "a", **work)
    go_on(_objective(), tmp_path / "a")
    others = {
        "loss": _objective(loss=lambda o, t: 2 * (o[:, 0] - t).square()),
        "activation": _objective(Activated(torch.relu)),
        "number": _objective(Activated(torch.tanh, 2.0)),
        "torch's": _objective(loss=lambda o, t: F.l1_loss(o[:, 0], t, reduction="none")),
    }
    for name, task in others.items():
        with pytest.raises(fl.FairleadError, match=r"objective\.(loss|model)") as told:
            go_on(task, tmp_path / "a")
        assert "trust=True" in str(told.value), name
        assert go_on(task.replace(trust=True), tmp_path / "a").rounds == 4
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    with pytest.raises(fl.FairleadError, match=r"objective\.loss"):
        go_on(_objective(), tmp_path / "a")
    inner = _objective(loss=_closed(1.0))
    fl.train(inner, fl.FedAvg(lr=0.01), rounds=2, checkpoints=tmp_path / "b", **work)
    go_on(_objective(loss=_closed(1.0)), tmp_path / "b")
    with pytest.raises(fl.FairleadError, match=r"objective\.loss"):
        go_on(_objective(loss=_closed(2.0)), tmp_path / "b")


def test_functions_of_clients_are_compared(tmp_path) -> None:
    def task(factor: float) -> fl.Task:
        one = lambda x: factor * (x * x).sum()  # noqa: E731
        return fl.Task.from_functions([one, lambda x: (x - 1).square().sum()], torch.ones(2))

    work = {"steps": 2, "rounds": 2}
    fl.train(task(1.0), fl.FedAvg(lr=0.1), checkpoints=tmp_path, **work)
    with pytest.raises(fl.FairleadError, match=r"objective\.model"):
        fl.train(task(2.0), fl.FedAvg(lr=0.1), resume=tmp_path, **{**work, "rounds": 4})
    assert fl.train(task(1.0), fl.FedAvg(lr=0.1), resume=tmp_path, steps=2, rounds=4).rounds == 4


def test_what_cannot_be_compared_is_refused_unless_trusted(tmp_path) -> None:
    odd = np.random.default_rng(0)  # has no source and no values that show

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output[:, 0] - target).square() + 0 * float(odd.bit_generator is None)

    task, work = _objective(loss=loss), {"steps": 2, "batch_size": 3}
    fl.train(task, fl.FedAvg(lr=0.01), rounds=2, checkpoints=tmp_path, **work)
    with pytest.raises(fl.FairleadError, match=r"loss cannot be compared: it holds a Generator"):
        fl.train(task, fl.FedAvg(lr=0.01), rounds=4, resume=tmp_path, **work)
    known = task.replace(trust=True)
    assert fl.train(known, fl.FedAvg(lr=0.01), rounds=4, resume=tmp_path, **work).rounds == 4


# -- growth ----------------------------------------------------------------------------------------


def test_checkpoints_do_not_grow_with_the_run(tmp_path) -> None:
    keep = fl.Checkpoints(tmp_path, every=30, last=99)
    task = fl.problems.theorem2(gradient=10)
    run = fl.train(task, fl.Scaffold(lr=0.1), rounds=120, steps=2, checkpoints=keep)
    sizes = [path.stat().st_size for path in listed(tmp_path)]
    assert len(sizes) == 4
    assert max(sizes) < 1.02 * min(sizes)
    saved = read(listed(tmp_path)[-1])
    assert saved.past.rows == run.history.rows
    assert len(saved.past.ledger.exchanges) == 120
    assert (saved.past.ledger.up, saved.past.ledger.down) == (run.ledger.up, run.ledger.down)
    assert len(read(listed(tmp_path)[0]).past.rows) == 31


def test_the_past_of_deleted_checkpoints_goes_too(tmp_path) -> None:
    task, work = fl.problems.theorem2(), {"steps": 2}
    for rounds in (2, 4, 6, 8):
        keep = fl.Checkpoints(tmp_path, every=1, last=2)
        fl.train(task, METHOD, rounds=rounds, checkpoints=keep, resume="auto", **work)
    names = [path.name for path in sorted(tmp_path.glob("past-*"))]
    assert names == ["past-3.jsonl"]


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_past_is_noticed(damage: str, tmp_path) -> None:
    fl.train(shared(), METHOD, rounds=3, checkpoints=tmp_path, **WORK)
    (log,) = tmp_path.glob("past-*")
    data = bytearray(log.read_bytes())
    data[50] ^= 1
    if damage == "gone":
        log.unlink()
    else:
        log.write_bytes(data if damage == "flip" else log.read_bytes()[:-9])
    with pytest.raises(fl.FairleadError, match=r"round-000000003\.safetensors is damaged: past-0"):
        fl.train(shared(), METHOD, rounds=5, resume=tmp_path, **WORK)


def test_shapes_without_end_are_not_captured_without_end(monkeypatch) -> None:
    made: list[int] = []
    real = oracle.traced
    monkeypatch.setattr(oracle, "traced", lambda *a, **k: made.append(1) or real(*a, **k))
    task = uneven(sizes=tuple(range(2, 62)))
    method, work = fl.FedAvg(lr=0.01), {"rounds": 24, "cohort": 10, "epochs": 1, "eval_every": 24}
    for engine in ("loop", "vmap"):
        made.clear()
        fl.train(task, method, engine=engine, **work)
        assert len(made) <= oracle.CAPTURES
    gradients = oracle.Gradients(task, oracle.Form(capture=(0,)))
    x, buffers = task.start()
    made.clear()
    for _ in range(2):
        for n in range(1, 60):
            block = tuple(t[:n] for t in task.data)
            gradients.single(x, block, buffers)
    assert len(made) == oracle.CAPTURES


# -- folders ---------------------------------------------------------------------------------------


def test_checkpoints_alone_have_a_lock(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.run.lock.time.sleep", lambda seconds: None)
    with (
        locked(tmp_path / "lock"),
        pytest.raises(fl.FairleadError, match="another process is writing"),
    ):
        fl.train(shared(), METHOD, rounds=2, checkpoints=tmp_path, **WORK)
    fl.train(shared(), METHOD, rounds=2, checkpoints=tmp_path, **WORK)
    locked(tmp_path / "lock").close()  # it was given back


@pytest.mark.parametrize("damage", ["gone", "text", "cut"])
def test_a_damaged_history_does_not_block_what_the_checkpoint_can_serve(damage, tmp_path) -> None:
    folder = tmp_path / "r"
    whole = fl.train(shared(), METHOD, rounds=6, **WORK)
    fl.train(shared(), METHOD, rounds=4, out=folder, **WORK)
    path = folder / "history.sqlite"
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"no history" if damage == "text" else path.read_bytes()[:5000])
    if damage == "gone":
        run = fl.train(shared(), METHOD, rounds=6, out=folder, resume=folder, **WORK)
    else:
        with pytest.warns(UserWarning, match="made anew from the checkpoint"):
            run = fl.train(shared(), METHOD, rounds=6, out=folder, resume=folder, **WORK)
        assert (folder / "history.sqlite.damaged").is_file()
    assert torch.equal(run.x, whole.x)
    assert fl.runs.read(folder).history["round"].tolist() == list(range(7))


def test_a_full_disk_at_the_description_leaves_the_folder_free(tmp_path, monkeypatch) -> None:
    def full(self: Path, *args, **more) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(fl.FairleadError, match=r"cannot write .*run.json: No space left"):
        fl.train(shared(), METHOD, rounds=2, out=tmp_path / "r", **WORK)
    monkeypatch.undo()
    assert fl.train(shared(), METHOD, rounds=2, out=tmp_path / "r", **WORK).rounds == 2


# -- forged files ----------------------------------------------------------------------------------


def _forged(folder: Path, change) -> None:
    """The newest checkpoint, changed, with a checksum that fits."""
    path = listed(folder)[-1]
    saved = read(path)
    tensors = {name: t.clone() for name, t in saved.tensors.items()}  # they are mapped
    meta = json.loads(json.dumps(saved.meta))
    found = change(tensors, meta)
    with path.open("wb") as file:
        write(file, tensors, "fairlead", meta if found is None else found)


def _nested(tensors, meta):
    deep: list = []
    for _ in range(900):
        deep = [deep]
    meta["config"] = {"method": deep}


FORGERIES = {
    "list": lambda tensors, meta: [1, 2],
    "nested": _nested,
    "no round": lambda tensors, meta: meta.pop("round") and None,
    "round": lambda tensors, meta: meta.update(round="3"),
    "other round": lambda tensors, meta: meta.update(round=2),
    "no engine": lambda tensors, meta: meta.pop("engine") and None,
    "engine": lambda tensors, meta: meta["engine"].update(form={"way": 3}),
    "mode": lambda tensors, meta: meta["engine"].update(mode="warp"),
    "workers": lambda tensors, meta: meta["engine"].update(workers=10**9),
    "counters": lambda tensors, meta: meta["counters"].update(other=1),
    "no config": lambda tensors, meta: meta.update(config=None),
    "past": lambda tensors, meta: meta.update(past={"file": "../../../etc/passwd", "bytes": 9}),
    "bytes": lambda tensors, meta: meta["past"].update(bytes="many"),
    "shards": lambda tensors, meta: meta.update(shards=7),
    "no buffers": lambda tensors, meta: tensors.pop("buffers") is None or None,
    "size": lambda tensors, meta: tensors.update({"state/x": torch.zeros(3)}),
    "type": lambda tensors, meta: tensors.update({"state/x": tensors["state/x"].float()}),
    "ids": lambda tensors, meta: tensors["store/ids"].add_(1000) is None or None,
    "negative": lambda tensors, meta: tensors["store/ids"].sub_(1000) is None or None,
    "rows": lambda tensors, meta: tensors.update({"store/c": torch.zeros(1, 2)}),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_checkpoints_are_refused_in_a_sentence(forgery: str, tmp_path) -> None:
    fl.train(shared(), METHOD, rounds=3, checkpoints=tmp_path, **WORK)
    _forged(tmp_path, FORGERIES[forgery])
    with pytest.raises(fl.FairleadError, match=r"round-000000003|executed|memory is") as told:
        fl.train(shared(), METHOD, rounds=5, resume=tmp_path, **WORK)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["[1]", "3", "null", '{"a": 5}', '{"a": {"b": "c"}}', "{", ""])
def test_odd_measurements_are_no_measurements(text: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FAIRLEAD_CACHE", str(tmp_path))
    (tmp_path / "fairlead").mkdir()
    (tmp_path / "fairlead" / "engine.json").write_text(text)
    assert measurements.known("a") is None
    x, y = torch.randn(64, 300), torch.arange(64) % 3
    parts = [range(k, k + 16) for k in (0, 16, 32, 48)]
    task = fl.Task(fl.models.mlp(300, 120, 3), "cross_entropy", (x, y), parts)
    assert fl.train(task, fl.FedAvg(lr=0.01), rounds=1, batch_size=16, steps=1).rounds == 1


# -- smaller things --------------------------------------------------------------------------------


def test_short_numbers_do_not_diverge_by_their_sum() -> None:
    a, b = np.ones((2, 4, 4)) * np.eye(4), np.zeros((2, 4))
    start = np.full(4, 60000.0)
    task = fl.problems.quadratics(a * 1e-4, b, start, dtype=torch.float16)
    assert math.isinf(float(task.start()[0].sum()))
    work = {"rounds": 2, "steps": 1, "objective": False}
    run = fl.train(task.replace(optimum=None), fl.FedAvg(lr=0.1), **work)
    assert run.stopped == "rounds"
    assert bool(torch.isfinite(run.x).all())


def test_samples_with_several_owners_are_pointed_out() -> None:
    x, y = torch.randn(6, 3), torch.arange(6) % 2
    for parts in ([[0, 1, 2], [2, 3]], [[0, 0, 1], [2]]):
        with pytest.warns(UserWarning, match="sample [02] more than once"):
            fl.Task(nn.Linear(3, 2), "cross_entropy", (x, y), parts)


def test_a_transform_that_fails_is_named() -> None:
    def wrong(x: Tensor, dtype: torch.dtype, keys: Tensor | None) -> Tensor:
        raise KeyError("colour")

    x, y = torch.randn(6, 3), torch.arange(6) % 2
    with pytest.raises(fl.FairleadError, match="the transform failed on samples of shape"):
        fl.Task(nn.Linear(3, 2), "cross_entropy", (x, y), [range(6)], transform=wrong)


OPTIMUM = """
import hashlib, sys
kept = [bytearray(int(n)) for n in sys.argv[1:]]
from fairlead.task.catalog import robust_regression
print(hashlib.sha256(robust_regression().optimum.numpy().tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_a_solution_is_the_same_in_every_process() -> None:
    found = set()
    for k in range(1, 7):  # memory lies elsewhere each time
        command = [sys.executable, "-c", OPTIMUM, str(1777 * k), str(33 * k)]
        env = {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", "PATH": ""}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT)
        found.add(done.stdout)
    assert len(found) == 1
    assert len(found.pop()) == 65


def test_the_second_of_two_comparisons_is_refused_before_its_work(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.run.lock.time.sleep", lambda seconds: None)
    seen: list[float] = []

    class Second(fl.Callback):
        def row(self, row) -> None:
            seen.append(row["round"])

    task = fl.problems.theorem2()
    (tmp_path / "c").mkdir()
    with (
        locked(tmp_path / "c" / "lock"),
        pytest.raises(fl.FairleadError, match="another process is writing"),
    ):
        fl.compare(task, [METHOD], rounds=2, steps=2, out=tmp_path / "c", callbacks=[Second()])
    assert not seen


def test_overwriting_keeps_the_old_until_the_new_is_there(tmp_path) -> None:
    task, work = fl.problems.theorem2(), {"rounds": 3, "steps": 2, "out": tmp_path / "c"}
    fl.compare(task, [fl.FedAvg(lr=0.1)], **work)
    table = (tmp_path / "c" / "table.md").read_text()

    class Stop(fl.Callback):
        def row(self, row) -> None:
            raise RuntimeError("the power went out")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="power"):
            fl.compare(task, [fl.FedAvg(lr=0.2)], overwrite=True, callbacks=[Stop()], **work)
        aside = tmp_path / "c" / ".replaced"
        assert (aside / "table.md").read_text() == table
        assert fl.runs.read(aside / "FedAvg-0").status == "rounds"
    fl.compare(task, [fl.FedAvg(lr=0.2)], overwrite=True, **work)
    assert not (tmp_path / "c" / ".replaced").exists()
    assert (tmp_path / "c" / "table.md").read_text() != table


def test_recorders_are_not_disturbed_by_odd_descriptions(tmp_path) -> None:
    fl.train(shared(), METHOD, rounds=2, out=Recorder(tmp_path / "r"), **WORK)
    path = tmp_path / "r" / "run.json"
    about = json.loads(path.read_text())
    for change in ({"lr": "fast"}, {"rounds": "many"}, {"split": [1]}, {"label": 3}, {"format": 9}):
        path.write_text(json.dumps({**about, **change}))
        with pytest.raises(fl.FairleadError, match="different version of fairlead, or changed"):
            fl.runs.read(tmp_path / "r")


# -- processes -------------------------------------------------------------------------------------

AGAIN = """
import hashlib, sys, torch
import fairlead as fl
torch.manual_seed(0)
data = torch.randn(48, 1, 8, 8), torch.arange(48) % 3
owners = [list(range(k, 48, 4)) for k in range(4)]
task = fl.Task(fl.models.femnist_cnn(3, "group", side=8), "cross_entropy", data, owners)
run = fl.train(task, fl.Scaffold(lr=0.1), rounds=4, steps=3, batch_size=4, engine=sys.argv[1], progress=False)
print(hashlib.sha256(run.x.numpy().tobytes()).hexdigest(), run.engine)
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_every_process_ends_in_the_same_bytes(engine: str) -> None:
    """Also on a busy machine: with a given engine, nothing that changes bits is chosen by timing."""
    call = [sys.executable, "-c", AGAIN, engine]
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        runs = [subprocess.Popen(call, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        shown = [run.communicate()[0].split()[0] for run in runs]
    finally:
        for one in busy:
            one.kill()
            one.wait()
    shown.append(subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()[0])
    assert len(set(shown)) == 1
