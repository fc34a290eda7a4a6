"""What a run takes, and what is refused before it begins."""

from __future__ import annotations

import shutil
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from conftest import uneven

import fairlead as fl
from fairlead.engine import resources as memory
from fairlead.engine.resources import Needs, bytes_per_client, clients_that_fit

GB = 10**9


def needs(**given: Any) -> Needs:
    usual: Any = {"device": "cuda:0", "total": 100 * GB, "data": GB, "server": GB, "client": GB}
    return Needs(**{**usual, "work": 2 * GB, **given})


def test_a_line_tells_what_lies_where() -> None:
    start = "memory: 4.0 GB on cuda:0 (data 1.0, server 1.0, clients at work 2.0)"
    assert str(needs()) == start
    assert str(needs(memories=19 * GB, tier="disk")) == (
        f"{start}, client memories up to 19.0 GB on disk"
    )
    assert str(needs(memories=5 * 10**6)) == f"{start}, client memories up to 5.0 MB on cuda:0"
    assert str(needs(memories=2 * 10**12, tier="host", data=0, host=GB)) == (
        "memory: 3.0 GB on cuda:0 (data 0.0, server 1.0, clients at work 2.0), data of 1.0 GB on the "
        "host, client memories up to 2.0 TB on the host"
    )


def test_what_cannot_fit_is_refused_in_a_sentence() -> None:
    needs(total=3 * GB).check()
    with pytest.raises(fl.FairleadError, match=r"needs 3\.0 GB on cuda:0 .* but it has 2\.9 GB"):
        needs(total=int(2.9 * GB)).check()
    needs(total=10 * GB, memories=7 * GB).check()
    with pytest.raises(fl.FairleadError, match=r"up to 8\.0 GB.*room for 7\.0 GB.*\"disk\""):
        needs(total=10 * GB, memories=8 * GB).check()
    with pytest.raises(fl.FairleadError, match=r"up to 1000\.0 TB.*memories=\"disk\""):
        needs(memories=10**15, tier="host").check()


def test_a_disk_that_may_become_full_is_a_warning(monkeypatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(9 * GB, 4 * GB, 5 * GB))
    needs(memories=5 * GB, tier="disk").check()
    with pytest.warns(UserWarning, match=r"can grow to 6\.0 GB.* has 5\.0 GB free: set TMPDIR"):
        needs(memories=6 * GB, tier="disk").check()


def test_a_run_tells_what_it_takes() -> None:
    task = uneven()
    settings: Any = {"rounds": 3, "cohort": 2, "batch_size": 4}
    run = fl.train(task, fl.Scaffold(lr=0.1), **settings)
    found = run.needs
    assert found == fl.needs(task, fl.Scaffold(lr=0.1), **settings)
    assert (found.device, found.tier, found.host) == ("cpu", "device", 0)
    held = [*task.data, *(task.test or ())]
    assert found.data == sum(t.numel() * t.element_size() for t in held)
    assert found.server == 2 * 8 * task.dim  # x and c
    assert found.memories == min(5, 6) * 8 * task.dim
    assert found.work == 2 * found.client == 2 * bytes_per_client(task, 4)
    disk = fl.Simulate("loop", memories="disk")
    assert fl.needs(task, fl.FedDyn(lr=0.1, alpha=0.1), engine=disk, **settings).tier == "disk"
    assert fl.needs(task, fl.FedAvg(lr=0.1), **settings).memories == 0


def test_clients_at_work_are_those_that_fit() -> None:
    task = uneven()
    each = bytes_per_client(task, 4)
    room = fl.Simulate("vmap", memory=3 * each)
    found = fl.needs(task, fl.FedAvg(lr=0.1), rounds=1, batch_size=4, engine=room)
    assert found.work == 3 * each
    draw = fl.Batches(4).draw(0, 0, np.arange(5), task.sizes)
    assert clients_that_fit(task, draw, 3 * each) == 3
    assert clients_that_fit(task, draw, 1) == 1


def test_a_run_that_does_not_fit_is_refused_before_its_first_round(monkeypatch) -> None:
    monkeypatch.setattr(memory, "total_memory", lambda device: 1000)
    with pytest.raises(fl.FairleadError, match=r"^the run needs .* kB on cpu even with one client"):
        fl.train(uneven(), fl.Scaffold(lr=0.1), rounds=2, batch_size=4)
    assert fl.needs(uneven(), fl.Scaffold(lr=0.1), rounds=2, batch_size=4).total == 1000
