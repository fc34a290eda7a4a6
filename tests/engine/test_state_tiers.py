"""Where clients' memories lie: the same bytes on the device, in the host's memory and on disk."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import uneven
from hypothesis import given, settings
from hypothesis import strategies as st

import fairlead as fl
from fairlead.engine.state import tiers
from fairlead.engine.state.store import ClientStore, Keep
from fairlead.run.saved import listed, read

TIERS: Any = ["device", "host", "disk"]
METHODS: Any = [
    fl.Scaffold(lr=0.2),
    fl.Scaffold(lr=0.2, warm_start=True),
    fl.FedDyn(lr=0.2, alpha=0.1),
    fl.FedAvg(lr=0.2, compressor=fl.ErrorFeedback(fl.TopK(0.2))),
]


class Kept(fl.Memory):
    c: torch.Tensor
    v: torch.Tensor


def start(device: str = "cpu") -> Kept:
    return Kept(
        c=torch.zeros(3, device=device), v=torch.full((2, 2), 7, dtype=torch.int16, device=device)
    )


def some(count: int, value: int, device: str = "cpu") -> Kept:
    c = torch.arange(3 * count, dtype=torch.float32, device=device).reshape(count, 3) + value
    v = torch.full((count, 2, 2), value, dtype=torch.int16, device=device)
    return Kept(c=c, v=v)


ids = st.lists(st.integers(0, 19), min_size=1, max_size=8, unique=True)
deeds = st.lists(
    st.tuples(st.sampled_from(["read", "write", "drop", "one", "lend"]), ids),
    max_size=14,
)


@pytest.mark.parametrize("tier", TIERS)
@given(deeds)
@settings(max_examples=60, deadline=None)
def test_a_store_is_a_full_table_whatever_is_asked_in_which_order(
    tier: Any, asked: list[tuple[str, list[int]]]
) -> None:
    check_a_store("cpu", tier, asked)


def check_a_store(device: str, tier: Any, asked: list[tuple[str, list[int]]]) -> None:
    store = ClientStore(20, start(device), tier)
    table, touched = {i: (torch.zeros(3), torch.full((2, 2), 7)) for i in range(20)}, set[int]()
    for turn, (deed, named) in enumerate(asked):
        who = np.array(named)
        if deed == "write":
            new = some(len(who), turn + 1, device)
            store.write(who, new)
            new.c.zero_()  # what was written has been copied
            for place, i in enumerate(named):
                again = some(len(who), turn + 1)
                table[i] = (again.c[place], again.v[place])
            touched |= set(named)
        elif deed == "drop":
            store.drop(who)
            for i in named:
                table[i] = (torch.zeros(3), torch.full((2, 2), 7))
            touched -= set(named)
        elif deed == "lend":
            into = store.lend(who)
            store.read_into(who, into)
            for place, i in enumerate(named):
                assert torch.equal(into["c"][place].cpu(), table[i][0])
        elif deed == "one":
            kept = store.view(named[0])
            assert torch.equal(kept.c.cpu(), table[named[0]][0])
            store.write(who[:1], Kept(c=kept.c[None] + 1, v=kept.v[None]))
            touched.add(named[0])
            table[named[0]] = (table[named[0]][0] + 1, table[named[0]][1])
        else:
            kept = store.read(who)
            for place, i in enumerate(named):
                assert torch.equal(kept.c[place].cpu(), table[i][0])
                assert torch.equal(kept.v[place].cpu().long(), table[i][1].long())
            kept.c.fill_(-1)  # what was read is the reader's
        assert set(store.touched.tolist()) == touched
    exported = store.export()
    assert exported["ids"].tolist() == sorted(touched)
    for place, i in enumerate(sorted(touched)):
        assert torch.equal(exported["c"][place], table[i][0])
        assert exported["v"].dtype == torch.int16
    other = ClientStore(20, start(device), "device")
    other.load(exported)
    for name, rows in other.export().items():
        assert torch.equal(rows, exported[name])


@pytest.mark.parametrize("tier", TIERS)
def test_what_was_read_before_a_write_keeps_its_values_and_reading_makes_no_rows(tier: Any) -> None:
    store = ClientStore(9, start(), tier)
    store.write(np.array([1, 2, 3]), some(3, 10))
    before = store.read(np.array([2, 3, 4]))  # 4 has no row yet
    store.write(np.array([3, 4]), some(2, 50))
    assert before.v[:, 0, 0].tolist() == [10, 10, 7]
    assert store.read(np.array([4, 3, 2])).v[:, 0, 0].tolist() == [50, 50, 10]
    store.write(np.array([4]), some(1, 60))
    assert store.read(np.array([4, 0])).v[:, 0, 0].tolist() == [60, 7]
    held = store.nbytes
    store.read(np.arange(9))
    assert store.touched.tolist() == [1, 2, 3, 4]
    assert store.nbytes == held


@pytest.mark.parametrize("tier", TIERS)
def test_a_table_grows_and_the_rows_of_dropped_clients_are_used_again(tier: Any) -> None:
    store = ClientStore(50, start(), tier)
    for turn in range(40):
        store.write(np.array([turn, turn + 1]), some(2, turn))
    assert store.read(np.arange(40)).v[:, 0, 0].tolist() == list(range(40))
    held = store.nbytes
    store.drop(np.arange(0, 40, 2))
    assert store.read(np.arange(3)).v[:, 0, 0].tolist() == [7, 1, 7]
    store.write(np.arange(41, 50), some(9, 100))
    assert store.nbytes == held
    assert store.read(np.arange(38, 43)).v[:, 0, 0].tolist() == [7, 39, 39, 100, 100]


@pytest.mark.parametrize("tier", TIERS)
def test_one_row_may_be_written_for_all(tier: Any) -> None:
    store, who = ClientStore(9, start(), tier), np.array([6, 2])
    store.write(who, Kept(c=torch.ones(3), v=start().v))
    assert store.read(who).c.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("tier", TIERS)
def test_lent_rows_are_those_of_the_clients_whatever_the_table_becomes(tier: Any) -> None:
    store, everyone, others = ClientStore(9, start(), tier), np.arange(4), np.arange(4, 9)
    lent = store.lend(everyone)
    for number in range(1, 4):
        rows = some(4, number)
        store.write(everyone, rows)
        store.read_into(everyone, lent)
        assert torch.equal(lent["c"], rows.c)
        assert torch.equal(lent["v"], rows.v)
        store.write(others[: 2 * number], some(len(others[: 2 * number]), 90))  # the table grows
    store.read_into(others[:4], lent)
    assert torch.equal(lent["c"], some(5, 90).c[:4])
    assert torch.equal(store.read(everyone).c, rows.c)
    few = np.array([2, 0])
    store.read_into(few, into := store.lend(few))
    assert torch.equal(into["c"], rows.c[[2, 0]])
    into["c"].zero_()
    assert torch.equal(store.read(everyone).c, rows.c)


@pytest.mark.parametrize("tier", TIERS)
def test_nobody_can_be_asked_for(tier: Any) -> None:
    store, nobody = ClientStore(9, start(), tier), np.empty(0, np.int64)
    assert store.read(nobody).c.shape == (0, 3)
    store.read_into(nobody, store.lend(nobody))
    store.write(nobody, some(0, 1))
    store.drop(nobody)
    assert store.touched.tolist() == []


def test_a_file_has_no_name_and_holes_where_no_row_was_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = tiers.Disk({"c": torch.zeros(1 << 18)})
    rows.put(np.array([1000]), {"c": torch.ones(1, 1 << 18)})
    assert list(tmp_path.iterdir()) == []
    number = rows._files["c"]
    os.fsync(number)
    found = os.fstat(number)
    assert found.st_size == 1001 << 20
    assert found.st_blocks * 512 < 3 << 20
    del rows
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(number)


def test_a_folder_that_cannot_be_written_to_is_told(monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    with pytest.raises(
        fl.FairleadError, match=r"memories cannot be stored in /nowhere/at/all: .*TMPDIR"
    ):
        ClientStore(9, start(), "disk")


def test_a_full_disk_ends_a_run_with_a_sentence(monkeypatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    engine = fl.Simulate(memories="disk")
    monkeypatch.setattr(tiers.os, "pwritev", full)
    with pytest.raises(
        fl.FairleadError, match=r"could not be written to .*: No space left.*TMPDIR"
    ):
        fl.train(uneven(), fl.Scaffold(lr=0.2), rounds=5, batch_size=4, engine=engine)


@pytest.mark.parametrize("tier", TIERS)
def test_a_memory_keeps_its_type(tier: Any) -> None:
    store = ClientStore(9, start(), tier)
    with pytest.raises(fl.FairleadError, match=r"torch\.float64, but it started as torch\.float32"):
        store.write(np.array([1]), Kept(c=torch.zeros(1, 3).double(), v=some(1, 1).v))


# -- runs ---------------------------------------------------------------------------------------


def trained(tier: Any, method: Any, mode: Any = "vmap", **more: Any) -> fl.Run:
    engine = fl.Simulate(mode, memories=tier, memory=more.pop("memory", None))
    plan = {"rounds": 5, "batch_size": 4, "cohort": 3, "dropout": 0.2, "seed": 2}
    return fl.train(uneven(), method, engine=engine, **{**plan, **more})


def same(one: fl.Run, two: fl.Run) -> None:
    assert torch.equal(one.x, two.x)
    for a, b in zip(one.session.stores(), two.session.stores(), strict=True):
        theirs = b.export()
        for name, rows in a.export().items():
            assert torch.equal(rows, theirs[name])


@pytest.mark.parametrize("mode", ["vmap", "loop", "debug"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_runs_end_in_the_same_bytes_in_every_tier(method: Any, mode: str) -> None:
    near = trained("device", method, mode)
    away = trained("disk", method, mode)
    assert [s.tier for s in near.session.stores()] == ["device"]
    assert [s.tier for s in away.session.stores()] == ["disk"]
    same(near, away)
    same(near, trained("host", method, mode))


def test_chunks_of_a_cohort_on_disk(monkeypatch) -> None:
    same(
        trained("device", fl.Scaffold(lr=0.2), memory=1),
        trained("disk", fl.Scaffold(lr=0.2), memory=1),
    )


def test_many_runs_at_once_on_disk() -> None:
    runs = [(fl.Scaffold(lr=lr), seed) for lr in (0.2, 0.1) for seed in (0, 1)]
    settings = {"rounds": 4, "batch_size": 4, "cohort": 3, "together": True}
    found = [
        fl.train_many(uneven(), runs, engine=fl.Simulate("vmap", memories=tier), **settings)
        for tier in TIERS
    ]
    for near, *others in zip(*found, strict=True):
        for other in others:
            same(near, other)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")
def test_rows_on_disk_move_between_workers() -> None:
    near = trained("device", fl.Scaffold(lr=0.2), workers=2)
    away = trained("disk", fl.Scaffold(lr=0.2), workers=2)
    assert [s.tier for s in away.session.stores()] == ["disk"]
    same(near, away)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_checkpoint_goes_on_in_another_tier(method: Any, tmp_path: Path) -> None:
    whole = trained("device", method, rounds=6)
    keep = fl.Checkpoints(tmp_path / "disk", every=1)
    trained("disk", method, rounds=3, checkpoints=keep)
    near = trained("device", method, rounds=6, resume=tmp_path / "disk")
    same(whole, near)
    keep = fl.Checkpoints(tmp_path / "near", every=1)
    trained("device", method, rounds=3, checkpoints=keep)
    same(whole, trained("disk", method, rounds=6, resume=tmp_path / "near"))
    same(whole, trained("disk", method, rounds=6, resume=trained("device", method, rounds=3)))


def test_the_checkpoint_of_a_run_is_the_same_file_in_every_tier(
    tmp_path: Path, monkeypatch
) -> None:
    files: dict[str, dict[str, torch.Tensor]] = {}
    for tier in TIERS:
        monkeypatch.setattr(
            "fairlead.engine.state.store.PART", 1 << 26 if tier == "device" else 100
        )
        keep = fl.Checkpoints(tmp_path / tier, every=1)
        held: Any = trained(tier, fl.Scaffold(lr=0.2), checkpoints=keep).session.store
        found = read(listed(tmp_path / tier)[-1])
        files[tier] = {k: t for k, t in found.tensors.items() if k.startswith("store/")}
        assert found.tensors["store/ids"].tolist() == held.touched.tolist()
    for tier in TIERS[1:]:
        for name, rows in files["device"].items():
            assert torch.equal(rows, files[tier][name])


def test_places_that_do_not_exist_are_refused() -> None:
    with pytest.raises(fl.FairleadError, match=r"place for memories.*disc"):
        fl.Simulate(memories="disc")  # type: ignore[arg-type]


# -- the choice ---------------------------------------------------------------------------------


def test_auto_takes_the_first_place_with_room(monkeypatch) -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(tiers, "installed", lambda: 1000)
    monkeypatch.setattr(tiers, "total_memory", lambda device: 400)
    monkeypatch.setattr(tiers, "_PROMISED", {})
    assert [tiers.chosen("auto", gpu, n) for n in (100, 101, 500, 501)] == [
        "device", "host", "host", "disk",
    ]  # fmt: skip
    assert [tiers.chosen("auto", cpu, n) for n in (500, 501)] == ["device", "disk"]
    assert [tiers.chosen("auto", cpu, n, sharing=2) for n in (250, 251)] == ["device", "disk"]
    assert [tiers.chosen(asked, cpu, 9999) for asked in TIERS] == ["device", "device", "disk"]
    assert [tiers.chosen(asked, gpu, 9999) for asked in TIERS] == TIERS


def test_tables_that_live_count_and_those_that_are_gone_do_not(monkeypatch) -> None:
    cpu = torch.device("cpu")
    row = 20
    gc.collect()
    held = tiers._promised("cpu")
    monkeypatch.setattr(tiers, "installed", lambda: 2 * (held + 15 * row))
    keep = Keep(10, cpu)
    one, two = keep.store(start()), keep.store(start())
    assert (one.tier, two.tier) == ("device", "disk")
    assert Keep(10, cpu, most=5).store(start()).tier == "device"
    del one
    gc.collect()
    assert keep.store(start()).tier == "device"


def test_who_can_take_part() -> None:
    assert fl.Everyone().most(10, 3) == 10
    assert fl.Uniform(2).most(10, 3) == 6
    assert fl.Uniform(0.5).most(10, 3) == 10
    assert fl.AllFirst(2).most(10, 3) == 10
    assert fl.Replay([[0, 3], [3, 4], [9]]).most(10, 2) == 3
    run = trained("auto", fl.Scaffold(lr=0.1), cohort=1, rounds=2)
    assert run.session.keep.count == 2
    assert trained("auto", fl.Scaffold(lr=0.1, warm_start=True)).session.keep.count == 5


# -- on a GPU -----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("tier", TIERS)
@given(deeds)
@settings(max_examples=60, deadline=None)
def test_a_store_on_a_gpu(tier: Any, asked: list[tuple[str, list[int]]]) -> None:
    check_a_store("cuda", tier, asked)


@pytest.mark.gpu
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_rows_are_right_while_the_gpu_is_busy(tier: Any) -> None:
    """Long kernels before every write: whatever copied too early would find old values."""
    width, clients = 50_000, 64
    rng = np.random.default_rng(0)
    store = ClientStore(clients, Single(c=torch.zeros(width, device="cuda")), tier)
    truth = torch.zeros(clients, device="cuda")
    busy = torch.randn(4096, 4096, device="cuda")
    row = torch.empty(16, width, device="cuda")  # one tensor for all rounds, as recordings have
    cohorts = [np.sort(rng.choice(clients, 16, replace=False)) for _ in range(30)]
    for who in cohorts:
        kept = store.read(who).c
        index = torch.from_numpy(who).cuda()
        assert torch.equal(kept, truth[index][:, None].expand(16, width))
        for _ in range(20):
            busy = (busy @ busy).tanh()
        row.copy_(kept + 1 + 0 * busy[0, 0])
        store.write(who, Single(c=row))
        row.zero_()
        truth[index] += 1
    everyone = np.arange(clients)
    assert torch.equal(store.read(everyone).c, truth[:, None].expand(clients, width))
    assert torch.equal(store.export()["c"][:, 0], truth.cpu())


class Single(fl.Memory):
    c: torch.Tensor


@pytest.mark.gpu
@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_runs_on_a_gpu_end_in_the_same_bytes_in_every_tier(method: Any, capture: bool) -> None:
    def run(tier: Any) -> fl.Run:
        engine = fl.Simulate("vmap", memories=tier, capture=capture)
        task = uneven(device="cuda")
        return fl.train(task, method, rounds=8, batch_size=4, cohort=3, seed=2, engine=engine)

    near = run("device")
    for tier in ("host", "disk"):
        away = run(tier)
        assert [store.tier for store in away.session.stores()] == [tier]
        same(near, away)


@pytest.mark.gpu
def test_host_rows_take_no_memory_of_the_gpu() -> None:
    start = Single(c=torch.zeros(1 << 20, device="cuda"))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    store = ClientStore(1000, start, "host")
    for first in range(0, 128, 8):
        rows = torch.full((8, 1 << 20), float(first), device="cuda")
        store.write(np.arange(first, first + 8), Single(c=rows))
        del rows
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < 4 * (8 << 22)
    assert store.nbytes >= 128 << 22
    assert store.read(np.array([127])).c[0, 0].item() == 120


def test_large_tables_are_mapped_for_themselves_and_keep_their_rows(monkeypatch) -> None:
    monkeypatch.setattr(tiers, "MAPPED", 64)
    table = tiers.Table({"c": torch.zeros(3), "k": torch.zeros(())}, 40, torch.device("cpu"))
    for first in (0, 2, 9, 39):
        ids = np.arange(first, first + 1)
        table.put(ids, {"c": torch.full((1, 3), float(first)), "k": torch.tensor([first + 0.5])})
    into, numbers = torch.empty(4, 3), torch.empty(4)
    table.get("c", np.array([0, 2, 9, 39]), into)
    table.get("k", np.array([0, 2, 9, 39]), numbers)
    assert into.tolist() == [[k] * 3 for k in (0.0, 2.0, 9.0, 39.0)]
    assert numbers.tolist() == [0.5, 2.5, 9.5, 39.5]
    assert not table.rows["c"].untyped_storage().resizable()
