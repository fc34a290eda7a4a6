"""Runs that are stopped, killed or damaged go on to the same bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conformance import METHODS, ROWS
from conftest import uneven
from programs import LIMIT, PATHS, ended, wait_until
from safetensors.torch import load_file

import fairlead as fl
from fairlead.run.folder import Recorder
from fairlead.run.saved import listed, number_of, read

WORK = {"cohort": 3, "batch_size": 4, "epochs": 1, "dropout": 0.2}


def _same(one: fl.Run, two: fl.Run) -> None:
    for key, value in two.state.tensors().items():
        assert torch.equal(one.state.tensors()[key], value), key
    if two.session.states.store is not None:
        kept = one.session.states.store.export()
        for key, value in two.session.states.store.export().items():
            assert torch.equal(kept[key], value), key
    assert torch.equal(one.session.buffers, two.session.buffers)
    assert one.counters == two.counters
    totals = [(r.ledger.up, r.ledger.down, r.ledger.nominal_up) for r in (one, two)]
    assert totals[0] == totals[1]
    assert len(one.ledger.exchanges) == len(two.ledger.exchanges)
    rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in r.history.rows]
            for r in (one, two)]  # fmt: skip
    assert rows[0] == rows[1]


@pytest.mark.parametrize("engine", ["vmap", "loop"])
@pytest.mark.parametrize("name", ROWS)
def test_every_method_goes_on_from_its_files(name: str, engine: str, tmp_path) -> None:
    method, work = METHODS[name], {**WORK, "engine": engine}
    whole = fl.train(uneven(), method, rounds=6, **work)
    fl.train(uneven(), method, rounds=4, checkpoints=fl.Checkpoints(tmp_path, every=3), **work)
    rest = fl.train(uneven(), method, rounds=6, resume=tmp_path, **work)
    _same(rest, whole)


def test_the_engine_is_the_one_the_run_began_with(tmp_path) -> None:
    fl.train(uneven(), fl.Scaffold(lr=0.1), rounds=2, checkpoints=tmp_path, engine="loop", **WORK)
    rest = fl.train(uneven(), fl.Scaffold(lr=0.1), rounds=4, resume=tmp_path, **WORK)
    assert rest.session.mode == "loop"


def test_the_oldest_are_dropped(tmp_path) -> None:
    keep = fl.Checkpoints(tmp_path, every=1, last=2)
    fl.train(uneven(), fl.FedAvg(lr=0.1), rounds=5, checkpoints=keep)
    assert [path.name for path in listed(tmp_path)] == [
        "round-000000004.safetensors", "round-000000005.safetensors",
    ]  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir())[:2] == ["lock", "past-0.jsonl"]
    assert "state/x" in load_file(tmp_path / "round-000000005.safetensors")


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_damage_is_seen_and_the_one_before_it_is_used(damage: str, tmp_path) -> None:
    method = fl.Scaffold(lr=0.1)
    whole = fl.train(uneven(), method, rounds=6, **WORK)
    fl.train(uneven(), method, rounds=4, checkpoints=fl.Checkpoints(tmp_path, every=1), **WORK)
    last = listed(tmp_path)[-1]
    data = bytearray(last.read_bytes())
    if damage == "flip":
        data[-100] ^= 1
    last.write_bytes({"cut": data[:-7], "flip": data, "empty": b"", "text": b"none"}[damage])
    with pytest.warns(UserWarning, match="skipped: round-000000004.safetensors is"):
        rest = fl.train(uneven(), method, rounds=6, resume=tmp_path, **WORK)
    _same(rest, whole)
    for path in listed(tmp_path):
        path.write_bytes(b"")
    with pytest.raises(fl.FairleadError, match=r"no checkpoint in .* is usable"):
        fl.train(uneven(), method, rounds=6, resume=tmp_path, **WORK)


def test_every_flipped_byte_is_seen(tmp_path) -> None:
    fl.train(uneven(), fl.Scaffold(lr=0.1), rounds=1, checkpoints=tmp_path)
    path = listed(tmp_path)[0]
    data = path.read_bytes()
    rng = random.Random(0)
    for place in rng.sample(range(len(data)), 150):
        path.write_bytes(
            data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
        )
        with pytest.raises(fl.FairleadError, match=r"round-000000001\.safetensors is"):
            read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": fl.Scaffold(lr=0.2)}, "method was"),
        ({"method": fl.FedAvg(lr=0.1)}, "method was"),
        ({"seed": 1}, "seed was 0, now it is 1"),
        ({"cohort": 4}, "cohort was"),
        ({"batch_size": 5}, "batches was"),
        ({"weighting": "size"}, "weights was"),
        ({"task": uneven(sizes=(7, 4, 6, 2, 10))}, "task was"),
    ],
)
def test_other_settings_are_refused(change: dict, message: str, tmp_path) -> None:
    settings = {"task": uneven(), "method": fl.Scaffold(lr=0.1), **WORK}
    first = dict(settings)
    fl.train(first.pop("task"), first.pop("method"), rounds=2, checkpoints=tmp_path, **first)
    other = {**settings, **change}
    with pytest.raises(fl.FairleadError, match=message):
        fl.train(other.pop("task"), other.pop("method"), rounds=4, resume=tmp_path, **other)


def test_there_must_be_a_checkpoint(tmp_path) -> None:
    with pytest.raises(fl.FairleadError, match="there is no checkpoint"):
        fl.train(uneven(), fl.FedAvg(lr=0.1), rounds=2, resume=tmp_path)
    for wrong in ({"every": 0}, {"last": 0}, {"minutes": 0.0}, {"first": 0.0}):
        with pytest.raises(fl.FairleadError, match="checkpoints:"):
            fl.Checkpoints(tmp_path, **wrong)


def test_a_full_disk_is_said_and_what_was_written_stays(tmp_path, monkeypatch) -> None:
    """From the third file on the disk is full; the run continues, and nothing that was written is lost."""
    method, real, calls = fl.Scaffold(lr=0.1), os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) >= 7:  # three calls a checkpoint: its past, the file, its folder
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    keep = fl.Checkpoints(tmp_path, every=1)
    with pytest.warns(UserWarning, match=r"round 3 could not be written.*No space left") as said:
        run = fl.train(uneven(), method, rounds=6, checkpoints=keep, **WORK)
    assert len(said) == 1
    monkeypatch.undo()
    assert [read(path).round for path in listed(tmp_path)] == [1, 2]
    whole = fl.train(uneven(), method, rounds=6, **WORK)
    _same(run, whole)
    _same(fl.train(uneven(), method, rounds=6, resume=tmp_path, **WORK), whole)


def test_a_disk_that_has_room_again_is_written_to(tmp_path, monkeypatch) -> None:
    real, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    keep = fl.Checkpoints(tmp_path, every=2, last=9)
    with pytest.warns(UserWarning, match="round 4 could not be written"):
        fl.train(uneven(), fl.Scaffold(lr=0.1), rounds=7, checkpoints=keep, **WORK)
    assert [read(path).round for path in listed(tmp_path)] == [2, 5, 6, 7]


def test_a_new_run_leaves_the_checkpoints_of_another_alone(tmp_path) -> None:
    fl.train(uneven(), fl.Scaffold(lr=0.1), rounds=5, checkpoints=tmp_path, **WORK)
    with pytest.raises(fl.FairleadError, match="holds checkpoints of an earlier run"):
        fl.train(uneven(), fl.Scaffold(lr=0.2), rounds=3, checkpoints=tmp_path, **WORK)
    assert [read(path).round for path in listed(tmp_path)] == [5]


class Clock:
    """Shows the seconds that a test sets."""

    def __init__(self, monkeypatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("fairlead.run.checkpoint.time.monotonic", lambda: self.now)


def test_the_first_comes_after_half_a_minute_and_others_every_ten(tmp_path, monkeypatch) -> None:
    clock, seen = Clock(monkeypatch), []

    class Slow(fl.Callback):
        def row(self, row) -> None:
            clock.now += 12.0
            seen.append((row["round"], [number_of(p) for p in listed(tmp_path)]))

    keep = fl.Checkpoints(tmp_path, last=100)
    fl.train(uneven(), fl.FedAvg(lr=0.1), rounds=110, checkpoints=keep, callbacks=[Slow()], **WORK)
    assert [number_of(p) for p in listed(tmp_path)] == [2, 53, 104, 110]
    assert seen[3] == (3, [2])  # it was there before the next round
    keep = fl.Checkpoints(tmp_path / "none", minutes=None)
    fl.train(uneven(), fl.FedAvg(lr=0.1), rounds=9, checkpoints=keep, callbacks=[Slow()], **WORK)
    assert [number_of(p) for p in listed(tmp_path / "none")] == [9]


class Ends(fl.Callback):
    """Counts its calls; stops the run after a round."""

    def __init__(self, after: int = -1) -> None:
        self.after, self.calls = after, []

    def begin(self, about, history) -> None:
        self.calls.append("begin")

    def row(self, row) -> bool:
        return row["round"] == self.after

    def end(self, run) -> None:
        self.calls.append("end")


@pytest.mark.parametrize("way", ["folder", "auto"])
@pytest.mark.parametrize("ending", ["rounds", "target", "diverged"])
def test_a_run_that_ended_is_returned_as_it_is(ending: str, way: str, tmp_path) -> None:
    method = fl.Scaffold(lr=1e20 if ending == "diverged" else 0.1)
    settings = {**WORK, "target": {"loss": 1e9} if ending == "target" else None, "eval_every": 2}
    first = fl.train(uneven(), method, rounds=5, out=tmp_path, **{**settings, "target": None})
    if ending == "target":
        settings["target"] = {"loss": first.history["loss"][1]}
        first = fl.train(
            uneven(), method, rounds=5, out=Recorder(tmp_path, overwrite=True), **settings
        )
    assert first.stopped == ending
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    heard, resume = Ends(), tmp_path if way == "folder" else "auto"
    again = fl.train(
        uneven(), method, rounds=5, out=tmp_path, resume=resume, callbacks=[heard], **settings
    )
    assert (again.stopped, again.rounds, heard.calls) == (ending, first.rounds, [])
    assert torch.equal(again.x, first.x)
    assert repr(again.history.rows) == repr(first.history.rows)
    assert again.seconds == first.seconds
    assert torch.equal(again.client_states().c, first.client_states().c) or ending == "diverged"
    assert str(again.error) == str(first.error)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    longer = fl.train(uneven(), method, rounds=7, out=tmp_path, resume=resume, **WORK)
    assert longer.stopped == ("diverged" if ending == "diverged" else "rounds")


def test_a_run_without_its_end_is_completed(tmp_path) -> None:
    class Dies(Ends):
        def end(self, run) -> None:
            raise KeyboardInterrupt

    work = {"rounds": 4, "out": tmp_path, **WORK}
    with pytest.raises(KeyboardInterrupt):
        fl.train(uneven(), fl.Scaffold(lr=0.1), callbacks=[Dies()], **work)
    assert fl.runs.read(tmp_path).status == "interrupted"
    heard = Ends()
    run = fl.train(uneven(), fl.Scaffold(lr=0.1), callbacks=[heard], resume="auto", **work)
    assert heard.calls == ["begin", "end"]
    stored = fl.runs.read(tmp_path)
    assert (stored.status, stored.history.rows) == ("rounds", run.history.rows)
    assert torch.equal(run.x, fl.train(uneven(), fl.Scaffold(lr=0.1), rounds=4, **WORK).x)


def test_a_run_that_a_callback_ended_goes_on_only_if_asked(tmp_path) -> None:
    work = {"rounds": 6, "out": tmp_path, **WORK}
    fl.train(uneven(), fl.FedAvg(lr=0.1), callbacks=[Ends(after=3)], **work)
    assert fl.train(uneven(), fl.FedAvg(lr=0.1), resume="auto", **work).rounds == 3
    assert fl.train(uneven(), fl.FedAvg(lr=0.1), resume=tmp_path, **work).rounds == 6


PROGRAM = """
import signal, sys
from conftest import uneven
import fairlead as fl
methods = {
    "scaffold": fl.Scaffold(lr=0.05),
    "fedglomo": fl.FedGLOMO(lr=0.05, beta=0.3, compressor=fl.QSGD(2)),
}
folder, name, rounds, latest = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

class Waits(fl.Callback):
    def begin(self, about, history):
        print("begun", flush=True)

    def row(self, row):
        if latest <= row["round"] < rounds:
            signal.alarm(600)
            signal.pause()  # until it is killed, if it is not yet

settings = dict(rounds=rounds, cohort=3, batch_size=4, epochs=1, engine="vmap", eval_every=5,
                checkpoints=fl.Checkpoints(folder, every=7), callbacks=[Waits()])
try:
    run = fl.train(uneven(), methods[name], resume=folder, **settings)
except fl.FairleadError as error:
    if "there is no checkpoint" not in str(error):
        raise
    run = fl.train(uneven(), methods[name], **settings)
print(run.stopped, run.rounds)
"""


def _process(
    folder: Path, name: str, rounds: int, latest: int | None = None
) -> subprocess.Popen[str]:
    """latest: the round after which it waits to be killed."""
    words = [str(folder), name, str(rounds), str(rounds if latest is None else latest)]
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)


def _killed_again_and_again(folder: Path, name: str, kills: int, rounds: int) -> None:
    """Each time after some more rounds; the first one while it writes or has just written a checkpoint,
    and every other one as soon as it has gone on from the last one."""
    rng = random.Random(kills)
    for k in range(kills):
        before = _written(folder)
        wanted = max(before + 1, rounds * k // (kills + 1))
        process = _process(folder, name, rounds, latest=rounds * (k + 1) // (kills + 1) + 20)
        with ended([process]):
            if k == 0:
                wait_until(lambda: any(folder.iterdir()), "a file is begun", process)
            elif k % 2:
                wait_until(lambda n=wanted: _written(folder) >= n, f"round {wanted}", process)
            else:
                assert process.stdout.readline() == "begun\n"
            time.sleep(rng.uniform(0.0, 0.05))  # in the middle of whatever it does
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL
    last = _process(folder, name, rounds)
    with ended([last]):
        assert last.communicate(timeout=LIMIT)[0].split() == ["begun", "rounds", str(rounds)]


def _written(folder: Path) -> int:
    """The round of the newest checkpoint."""
    return int(listed(folder)[-1].stem.partition("-")[2]) if listed(folder) else -1


def _final(folder: Path) -> dict[str, torch.Tensor]:
    saved = read(listed(folder)[-1])
    rows = [sorted({**row, "seconds": 0.0}.items()) for row in saved.past.rows]
    text = repr([rows, [vars(e) for e in saved.past.ledger.exchanges]])
    return {**saved.tensors, "past": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}


def _compare(name: str, kills: int, rounds: int, tmp_path: Path) -> None:
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    broken.mkdir()
    other = _process(whole, name, rounds)
    with ended([other]):
        _killed_again_and_again(broken, name, kills, rounds)
        assert other.communicate(timeout=LIMIT)[0]
    one, two = _final(broken), _final(whole)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_run_that_was_killed_ends_in_the_same_bytes(tmp_path) -> None:
    _compare("scaffold", 3, 300, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "fedglomo"])
def test_twenty_kills_end_in_the_same_bytes(name: str, tmp_path) -> None:
    _compare(name, 20, 1500, tmp_path)


@pytest.mark.parametrize(
    "kind", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_run_with_a_checkpoint(kind: signal.Signals, tmp_path) -> None:
    process = _process(tmp_path, "scaffold", 100_000)
    with ended([process]):
        wait_until(lambda: bool(listed(tmp_path)), "there is a checkpoint", process)
        process.send_signal(kind)
        _, word, rounds = process.communicate(timeout=LIMIT)[0].split()
    assert process.returncode == 0
    assert word == "interrupted"
    assert read(listed(tmp_path)[-1]).round == int(rounds)
