"""Trackers: every number arrives once, also over a stop, and no failure of theirs ends a training."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
import struct
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import wait_until

import fairlead as fl
from fairlead import track
from fairlead.track.mlflow import PATIENCE
from fairlead.track.tracker import Tracker, tag

METHOD = fl.Scaffold(lr=0.1)
DIVERGES = fl.FedAvg(lr=1e200)


def _task() -> fl.Task:
    data = fl.sources.digits()
    rows = fl.splits.dirichlet(data.y, clients=4, alpha=0.5)
    return fl.Task(fl.models.mlp(64, 4, 10), "cross_entropy", (data.x, data.y), rows,
                   test=(data.x_test, data.y_test))  # fmt: skip


@pytest.fixture(scope="module")
def task() -> fl.Task:
    return _task()


def _train(
    task: fl.Task, tracker: Tracker, rounds: int = 4, method: Any = METHOD, **more
) -> fl.Run:
    return fl.train(
        task, method, rounds=rounds, steps=2, batch_size=8, drift=True, callbacks=[tracker], **more
    )


class Breaks(fl.Callback):
    """Fails after the evaluation of a round."""

    def __init__(self, at: int) -> None:
        self.at = at

    def row(self, row) -> None:
        if row["round"] == self.at:
            raise RuntimeError("the power failed")


def _broken_off_and_resumed(task: fl.Task, folder: Path, make) -> fl.Run:
    """A run that fails after round 5 with its last checkpoint in round 3, then goes on to round 8."""
    keep = fl.Checkpoints(folder / "checkpoints", every=3)
    settings: dict[str, Any] = {"steps": 2, "batch_size": 8, "drift": True, "out": folder}
    with pytest.raises(RuntimeError):
        fl.train(
            task, METHOD, rounds=8, checkpoints=keep, callbacks=[make(), Breaks(5)], **settings
        )
    return fl.train(task, METHOD, rounds=8, resume=folder, callbacks=[make()], **settings)


def _columns(history: fl.History) -> dict[str, list[tuple[int, float]]]:
    """The (round, value) pairs of every column, under its tag."""
    return {
        tag(name): [(int(row["round"]), float(row[name])) for row in history.rows if name in row]
        for name in history
    }


def _equal(found: dict[str, list[tuple[int, float]]], history: fl.History, cast=float) -> None:
    wanted = _columns(history)
    assert set(found) >= set(wanted) - {"round"}
    for name, pairs in wanted.items():
        if name in ("round", "cost/seconds"):
            continue
        assert [step for step, _ in found[name]] == [step for step, _ in pairs], name
        np.testing.assert_array_equal(
            [value for _, value in found[name]], [cast(value) for _, value in pairs], name
        )


# -- what they share --------------------------------------------------------------------------------


class Stub(Tracker):
    """A tracker that fails when told to, and notes what arrives."""

    name = "Stub"

    def __init__(self, fails: set[str], rounds: range = range(0)) -> None:
        super().__init__()
        self.fails, self.rounds, self.got, self.calls = fails, rounds, [], []
        self.ended = ""

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise ConnectionError("no route\nto host")

    def open(self, first: int) -> float:
        self._call("open")
        return first - 1

    def send(self, row) -> None:
        if row["round"] in self.rounds:
            raise OSError(28, "No space left on device")
        self._call("send")
        self.got.append(row["round"])

    def close(self, why, best) -> None:
        self._call("close")
        self.ended = why

    def drop(self) -> None:
        self._call("drop")
        raise ValueError("even that fails")


@pytest.mark.parametrize("fails", [{"open"}, {"send"}, {"close"}, {"open", "send", "close"}])
def test_a_tracker_that_fails_ends_no_training_and_is_told_of_once(task, fails) -> None:
    with pytest.warns(UserWarning, match=r"Stub failed \(no route to host\)") as told:
        run = _train(task, Stub(fails))
    assert len(told) == 1
    assert (run.stopped, run.rounds) == ("rounds", 4)


def test_what_could_not_be_told_is_told_later_and_once(task, monkeypatch) -> None:
    clock = iter(range(0, 10**6, 50))
    monkeypatch.setattr("fairlead.track.tracker.monotonic", lambda: float(next(clock)))
    stub = Stub(set())
    stub.rounds = range(2, 4)

    class Mends(fl.Callback):
        def row(self, row) -> None:
            if row["round"] == 7:
                stub.rounds = range(0)

    with pytest.warns(UserWarning, match="No space left"):
        fl.train(task, METHOD, rounds=30, steps=1, batch_size=4, callbacks=[stub, Mends()])
    assert stub.got == list(range(31))
    assert stub.ended == "rounds"


class Slow(Stub):
    """Fails to open after some seconds of a clock of its own, on which a row takes one second."""

    def __init__(self, takes: float) -> None:
        super().__init__({"open"})
        self.takes, self.now, self.tried = takes, 0.0, []

    def open(self, first: int) -> float:
        self.tried.append(self.now)
        self.now += self.takes
        return super().open(first)

    def row(self, row) -> None:
        self.now += 1
        super().row(row)


def test_a_tracker_that_fails_rests(task, monkeypatch) -> None:
    stub = Stub({"open"})
    monkeypatch.setattr("fairlead.track.tracker.monotonic", lambda: 5.0)
    with pytest.warns(UserWarning, match="Stub failed"):
        _train(task, stub, rounds=20)
    assert stub.calls.count("open") == 2  # at the beginning and, after a rest, at the end
    slow = Slow(takes=0.5)
    monkeypatch.setattr("fairlead.track.tracker.monotonic", lambda: slow.now)
    with pytest.warns(UserWarning, match="Stub failed"):
        _train(task, slow, rounds=12)
    assert slow.tried == [
        0.0,
        5.5,
        11.0,
        14.5,
    ]  # after ten times as long as it failed, and at the end


def test_how_a_run_failed_is_told(task) -> None:
    stub = Stub(set())
    with pytest.raises(RuntimeError):
        fl.train(task, METHOD, rounds=4, steps=1, batch_size=4, callbacks=[stub, Breaks(2)])
    assert stub.ended == "failed: the power failed"
    Stub(set()).failed(RuntimeError("before the beginning"))


def test_trackers_by_name(tmp_path) -> None:
    for library in ("tensorboard", "wandb", "mlflow"):
        pytest.importorskip(library)
    board, flow, w = track.trackers("tensorboard, mlflow:sqlite:///x.db,wandb:mine", tmp_path)
    assert isinstance(board, track.TensorBoard)
    assert board.place == tmp_path / "track"
    assert isinstance(flow, track.MLflow)
    assert (flow.uri, flow.folder) == ("sqlite:///x.db", tmp_path / "track")
    assert isinstance(w, track.WandB)
    assert (w.project, w.folder) == ("mine", tmp_path / "track")
    (board,) = track.trackers("tensorboard:some/where", None)
    assert isinstance(board, track.TensorBoard)
    assert board.place == Path("some/where")
    with pytest.raises(fl.FairleadError, match="write tensorboard:FOLDER"):
        track.trackers("tensorboard", None)
    with pytest.raises(fl.FairleadError, match="did you mean 'tensorboard'"):
        track.trackers("tensorbord", None)


@pytest.mark.parametrize(
    ("kind", "module", "package"),
    [
        (track.WandB, "wandb", "wandb"),
        (track.MLflow, "mlflow", "mlflow"),
        (lambda: track.TensorBoard("x"), "torch.utils.tensorboard", "tensorboard"),
    ],
)
def test_a_library_that_is_missing_is_named(monkeypatch, kind, module, package) -> None:
    import importlib

    real = importlib.import_module

    def without(name: str) -> Any:
        if name == module:
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(fl.FairleadError, match=f"pip install {package}"):
        kind()


# -- TensorBoard ------------------------------------------------------------------------------------


def _events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), {"scalars": 0, "tensors": 0}).Reload()


def _board(folder: Path) -> dict[str, list[tuple[int, float]]]:
    read = _events(folder)
    return {
        name: [(event.step, event.value) for event in read.Scalars(name)]
        for name in read.Tags()["scalars"]
    }


def _text(folder: Path, name: str) -> str:
    (event, *_) = reversed(_events(folder).Tensors(f"{name}/text_summary"))
    return event.tensor_proto.string_val[0].decode()


def test_tensorboard_has_every_number(task, tmp_path) -> None:
    pytest.importorskip("tensorboard")
    run = _train(task, track.TensorBoard(tmp_path))
    found = _board(tmp_path)
    _equal(found, run.history, cast=lambda value: float(np.float32(value)))
    assert {"loss", "accuracy", "cost/bits", "drift/model", "drift/1.weight"} <= set(found)
    assert _text(tmp_path, "ended").startswith("rounds")
    assert "| method.lr | 0.1 |" in _text(tmp_path, "settings")


def test_tensorboard_shows_hyperparameters(task, tmp_path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.plugins.hparams import plugin_data_pb2 as data

    _train(task, track.TensorBoard(tmp_path))
    found = {}
    content = _events(tmp_path).summary_metadata
    for name, kept in content.items():
        if name.startswith("_hparams_"):
            made = data.HParamsPluginData()
            made.ParseFromString(kept.plugin_data.content)
            found[made.WhichOneof("data")] = made
    assert set(found) == {"experiment", "session_start_info", "session_end_info"}
    values = found["session_start_info"].session_start_info.hparams
    assert values["method.lr"].number_value == 0.1
    assert values["label"].string_value == "Scaffold"
    metrics = [m.name.tag for m in found["experiment"].experiment.metric_infos]
    assert "accuracy" in metrics


def test_tensorboard_goes_on_without_doubling(task, tmp_path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "r"
    run = _broken_off_and_resumed(task, folder, lambda: track.TensorBoard(folder / "track"))
    assert len(list((folder / "track").iterdir())) == 2
    _equal(_board(folder / "track"), run.history, cast=lambda value: float(np.float32(value)))
    assert _text(folder / "track", "ended").startswith("rounds")


def test_tensorboard_that_joins_late_gets_the_whole_run(task, tmp_path) -> None:
    pytest.importorskip("tensorboard")
    first = fl.train(task, METHOD, rounds=3, steps=2, batch_size=8, drift=True)
    run = _train(task, track.TensorBoard(tmp_path), rounds=6, resume=first)
    _equal(_board(tmp_path), run.history, cast=lambda value: float(np.float32(value)))


def test_tensorboard_shows_the_newest_of_two_runs_in_a_folder(task, tmp_path) -> None:
    pytest.importorskip("tensorboard")
    _train(task, track.TensorBoard(tmp_path), rounds=6)
    run = _train(task, track.TensorBoard(tmp_path), rounds=3, method=fl.FedAvg(lr=0.05))
    _equal(_board(tmp_path), run.history, cast=lambda value: float(np.float32(value)))


def test_tensorboard_after_a_failure_in_between(task, tmp_path, monkeypatch) -> None:
    pytest.importorskip("tensorboard")
    board, count = track.TensorBoard(tmp_path), []
    clock = iter(range(0, 10**6, 50))
    send = board.send

    def fails(row) -> None:
        count.append(row)
        send(row)
        if len(count) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(board, "send", fails)
    monkeypatch.setattr("fairlead.track.tracker.monotonic", lambda: float(next(clock)))
    with pytest.warns(UserWarning, match="TensorBoard failed"):
        run = _train(task, board, rounds=20)
    _equal(_board(tmp_path), run.history, cast=lambda value: float(np.float32(value)))


def test_tensorboard_where_it_cannot_write(task, tmp_path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(UserWarning, match="TensorBoard failed") as told:
        run = _train(task, track.TensorBoard(tmp_path / "file"))
    assert len(told) == 1
    assert run.stopped == "rounds"


def test_tensorboard_takes_what_is_not_finite(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    simple = fl.problems.theorem2(gradient=10)
    run = fl.train(simple, DIVERGES, rounds=9, steps=9, callbacks=[track.TensorBoard(tmp_path)])
    assert not math.isfinite(run.history.last("loss"))
    _equal(_board(tmp_path), run.history, cast=_float32)
    assert _text(tmp_path, "ended").startswith("diverged")


def _float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


# -- MLflow -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """An empty store, whose tables take long to make."""
    folder = tmp_path_factory.mktemp("store")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own warnings are not ours
        library = pytest.importorskip("mlflow")
        pytest.importorskip("alembic")
        client = library.MlflowClient(tracking_uri=f"sqlite:///{folder}/m.db")
        client.create_experiment("mine", artifact_location=f"file://{folder}/artifacts")
    return folder / "m.db"


@pytest.fixture
def mlflow(tmp_path, store: Path) -> Any:
    """A client of a fresh store."""
    shutil.copy(store, tmp_path / "m.db")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip("mlflow").MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/m.db")


def _flow(tmp_path: Path, folder: Path | None = None, **more) -> track.MLflow:
    return track.MLflow(f"sqlite:///{tmp_path}/m.db", "mine", folder=folder, **more)


def _logged(client: Any, run_id: str) -> dict[str, list[tuple[int, float]]]:
    names = client.get_run(run_id).data.metrics
    return {
        name: sorted((m.step, m.value) for m in client.get_metric_history(run_id, name))
        for name in names
    }


def test_mlflow_has_every_number(task, tmp_path, mlflow) -> None:
    flow = _flow(tmp_path)
    run = _train(task, flow)
    _equal(_logged(mlflow, flow.run_id), run.history)
    stored = mlflow.get_run(flow.run_id)
    assert stored.info.status == "FINISHED"
    assert stored.data.tags["ended"] == "rounds"
    assert stored.data.params["method.lr"] == "0.1"
    assert stored.data.metrics["best/accuracy"] == run.history.best("accuracy")
    assert not list(tmp_path.glob("track"))


def test_mlflow_goes_on_in_the_same_run_without_doubling(task, tmp_path, mlflow) -> None:
    folder = tmp_path / "r"
    run = _broken_off_and_resumed(task, folder, lambda: _flow(tmp_path, folder))
    (only,) = mlflow.search_runs([mlflow.get_experiment_by_name("mine").experiment_id])
    assert json.loads((folder / "track" / "mlflow.json").read_text())["run_id"] == only.info.run_id
    _equal(_logged(mlflow, only.info.run_id), run.history)
    assert (only.info.status, only.data.tags["ended"]) == ("FINISHED", "rounds")
    assert only.data.params["after"] == "-1"
    assert only.data.tags["resumed.after"] == "3"


def test_mlflow_logs_to_a_run_that_is_given_and_leaves_it_open(task, tmp_path, mlflow) -> None:
    made = mlflow.create_run(mlflow.get_experiment_by_name("mine").experiment_id)
    run = _train(task, _flow(tmp_path, run_id=made.info.run_id))
    _equal(_logged(mlflow, made.info.run_id), run.history)
    assert mlflow.get_run(made.info.run_id).info.status == "RUNNING"


def test_mlflow_makes_a_new_run_where_the_old_one_was_deleted(task, tmp_path, mlflow) -> None:
    folder = tmp_path / "r"
    first = _flow(tmp_path, folder)
    _train(task, first, 2, out=folder)
    mlflow.delete_run(first.run_id)
    second = _flow(tmp_path, folder)
    run = _train(task, second, 4, out=folder, resume=folder)
    assert second.run_id != first.run_id
    _equal(_logged(mlflow, second.run_id), run.history)


def test_mlflow_takes_long_values_and_many_of_them(tmp_path, mlflow) -> None:
    about = {"label": "Long", "text": "x" * 9000, "many": {f"key{k}": k for k in range(250)}}
    flow = _flow(tmp_path)
    better = dict.fromkeys([f"c{k}" for k in range(1200)], "lower")
    flow.begin(about, fl.History(better=better))
    flow.row(
        {"round": 0, "top-5 (%)": math.nan, "up": math.inf, **{f"c{k}": k for k in range(1200)}}
    )
    flow.failed(KeyboardInterrupt())
    stored = mlflow.get_run(flow.run_id)
    assert len(stored.data.params) == 252
    assert len(stored.data.params["text"]) == 500
    assert len(stored.data.metrics) == 1203 + 1200  # and the best of each that is finite
    assert math.isnan(stored.data.metrics["top-5 ___"])
    assert stored.data.metrics["up"] > 1e308
    assert (stored.info.status, stored.data.tags["ended"]) == ("KILLED", "interrupted")


def test_mlflow_without_its_server(task, tmp_path, monkeypatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("mlflow")
    for name in PATIENCE:  # fairlead sets them, as the defaults wait for minutes
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with pytest.warns(UserWarning, match="MLflow failed") as told:
        run = _train(task, track.MLflow("http://127.0.0.1:9", folder=tmp_path))
    assert len([w for w in told if "MLflow failed" in str(w.message)]) == 1
    assert run.stopped == "rounds"
    assert {name: os.environ[name] for name in PATIENCE} == PATIENCE


def test_a_silent_server_is_asked_once_at_each_end(task, tmp_path, monkeypatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("mlflow")
    for name, value in {**PATIENCE, "MLFLOW_HTTP_REQUEST_TIMEOUT": "1"}.items():
        monkeypatch.setenv(name, value)
    asked: list[socket.socket] = []

    def serve(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                asked.append(server.accept()[0])  # and never answer

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        with pytest.warns(UserWarning, match="MLflow failed"):
            _train(task, track.MLflow(f"http://127.0.0.1:{server.getsockname()[1]}"))
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in asked:
        connection.close()
    assert len(asked) == 2


# -- W&B --------------------------------------------------------------------------------------------


@pytest.fixture
def wandb(tmp_path, monkeypatch) -> Any:
    """The library with everything it writes in one folder, and nothing sent."""
    for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "wandb-own"))
    (tmp_path / "wandb-own").mkdir()
    for name, value in {
        "MODE": "offline", "SILENT": "true", "CONSOLE": "off", "DISABLE_GIT": "true",
        "DISABLE_CODE": "true", "ERROR_REPORTING": "false",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"WANDB_{name}", value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip("wandb")


def _records(path: Path) -> list[Any]:
    """The records of an offline file: blocks of 32 KiB with headers of seven bytes, as in LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    data, at, held, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        held += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(held)
            found.append(record)
            held = b""
    return found


def _complete(path: Path) -> list[Any]:
    """All records; W&B's own process writes the last of them a moment after the run is over."""

    def over() -> bool:
        found = _records(path)
        return bool(found) and found[-1].WhichOneof("record_type") == "exit"

    wait_until(over, "the run has an end")
    return _records(path)


def _offline(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, Any], list[str]]:
    """Metrics, last values of config and summary, and ids of all offline runs in a folder."""
    found: dict[str, list[tuple[int, float]]] = {}
    more: dict[str, Any] = {}
    ids = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda p: p.stat().st_mtime):
        for record in _complete(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                ids.append(record.run.run_id)
            for part in (record.summary.update, record.config.update, record.run.config.update):
                for item in part:
                    name = item.key or "/".join(item.nested_key)
                    more[name] = json.loads(item.value_json)
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                found.setdefault(name, []).append(
                    (record.history.step.num, float(json.loads(item.value_json)))
                )
    return found, more, ids


def test_wandb_has_every_number(task, tmp_path, wandb) -> None:
    run = _train(task, track.WandB("mine", mode="offline", dir=str(tmp_path)))
    found, more, _ = _offline(tmp_path)
    _equal(found, run.history)
    assert more["method.lr"] == 0.1
    assert more["ended"] == "rounds"
    assert more["best/accuracy"] == run.history.best("accuracy")


def _second() -> str:
    return time.strftime("%Y%m%d_%H%M%S")


def test_wandb_goes_on_under_the_same_id_without_doubling(task, tmp_path, wandb) -> None:
    folder = tmp_path / "r"

    def make() -> track.WandB:
        for earlier in folder.glob("track/wandb/offline-run-*"):  # named by id and second
            wait_until(lambda name=earlier.name: name < f"offline-run-{_second()}", "a new second")
        return track.WandB("mine", folder=folder)

    run = _broken_off_and_resumed(task, folder, make)
    found, more, ids = _offline(folder / "track")
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert json.loads((folder / "track" / "wandb.json").read_text())["id"] == ids[0]
    _equal(found, run.history)
    assert more["ended"] == "rounds"


def test_wandb_takes_what_is_not_finite(tmp_path, wandb) -> None:
    simple = fl.problems.theorem2(gradient=10)
    tracker = track.WandB("mine", folder=tmp_path)
    run = fl.train(simple, DIVERGES, rounds=9, steps=9, callbacks=[tracker])
    found, more, _ = _offline(tmp_path / "track")
    _equal(found, run.history)
    assert more["ended"] == "diverged"


def test_wandb_that_cannot_begin(task, tmp_path, wandb, monkeypatch) -> None:
    def refuses(**given: Any) -> None:
        raise wandb.errors.CommError("the server\nis down")

    monkeypatch.setattr(wandb, "init", refuses)
    with pytest.warns(UserWarning, match=r"W&B failed \(the server is down\)") as told:
        run = _train(task, track.WandB("mine", folder=tmp_path))
    assert len(told) == 1
    assert run.stopped == "rounds"
