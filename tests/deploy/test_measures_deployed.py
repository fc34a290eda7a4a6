"""Measures on clients that are elsewhere: the same numbers as in the simulation, and only what clients have agreed to."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_federation import Federation, task_of

import fairlead as fl
from fairlead.deploy import Server
from fairlead.deploy.wire import Order, Reply

pytestmark = pytest.mark.usefixtures("quick_files")
m = fl.measure
SCAFFOLD, FEDPVR = fl.Scaffold(lr=0.2), fl.FedPVR(lr=0.2)
CASES: dict[str, tuple[fl.Algorithm[Any, Any], m.Probe | m.Measure]] = {
    "gradients": (SCAFFOLD, m.Dissimilarity()),
    "gradients, only sums": (FEDPVR, m.Dissimilarity(pairs=False)),
    "gradients, some samples": (SCAFFOLD, m.Dissimilarity(samples=4)),
    "curvature": (FEDPVR, m.Curvature(steps=2)),
    "noise": (FEDPVR, m.GradientNoise()),
    "control variates": (SCAFFOLD, m.ControlLag()),
    "control variates of a part": (FEDPVR, m.ControlLag()),
    "local points": (SCAFFOLD, m.LocalPoints()),
    "local points, two exchanges": (fl.Mime(lr=0.1), m.LocalPoints(loss=False)),
    "alpha": (SCAFFOLD, m.Alpha()),
    "compression": (fl.FedAvg(lr=0.2, compressor=fl.QSGD(bits=4)), m.CompressionError()),
    "evaluation": (SCAFFOLD, m.OnClients()),
    "inside rounds": (SCAFFOLD, m.ClientDrift()),
    "of uploads": (SCAFFOLD, m.DriftDiversity({"a": slice(0, 25), "b": slice(25, 43)})),
}


def columns(run: fl.Run, name: str) -> dict[str, float]:
    cost = ("measure_bits", "measure_gradients")
    return {c: run.history.last(c) for c in run.history if c.partition("/")[0] == name or c in cost}


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_and_the_costs_are_those_of_the_simulation(name: str, tmp_path: Path) -> None:
    method, measure = CASES[name]
    here = Federation(tmp_path, method, measures=[measure])
    server = here.server()
    run = server.run(2)
    there = here.simulated(2, measures=[measure])
    found, expected = columns(run, measure.name), columns(there, measure.name)
    assert found.keys() == expected.keys()
    assert any(c.partition("/")[0] == measure.name for c in found)
    for column, value in expected.items():
        assert math.isclose(found[column], value, rel_tol=1e-9, abs_tol=1e-12), column
    torch.testing.assert_close(run.state.x, there.state.x, rtol=0, atol=1e-10)
    assert server.roster.refused == []
    assert server.remote is not None
    assert server.remote.payload_up == run.history.last("bits_up")
    assert server.remote.payload_down == run.history.last("bits_down")
    if isinstance(measure, m.Probe):
        sent = server.remote.measured_up + server.remote.measured_down
        counted = run.history.last("measure_bits")
        # alpha's two trial rounds share vectors that are counted twice
        assert sent < counted if name == "alpha" else sent == counted


class WithTests(Federation):
    """Clients with test data of their own; the last has none."""

    own = ((0, 3), (3, 9), (9, 10), (10, 10))

    def _test(self) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(11)
        return torch.randn(10, 4, dtype=torch.float64), torch.arange(10) % 3

    def local(self, client: int) -> fl.Task:
        a, b = self.own[client]
        rows = torch.from_numpy(self.split[client])
        test = tuple(t[a:b] for t in self._test()) if b > a else None
        return task_of((self.data[0][rows], self.data[1][rows]), test=test)

    def whole(self) -> fl.Task:
        split = [np.arange(a, b) for a, b in self.own]
        return task_of(self.data, self.split, test=self._test(), test_clients=split)


def test_evaluation_on_the_clients_own_test_data(tmp_path: Path) -> None:
    here = WithTests(tmp_path, SCAFFOLD, measures=[m.OnClients()])
    server = here.server()
    run = server.run(3, weighting="size")
    there = here.simulated(3, measures=[m.OnClients()], weighting="size")
    for column in ("loss", "worst_loss", "test_loss", "accuracy", "test_samples"):
        found, expected = (r.history[f"on_clients/{column}"] for r in (run, there))
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(run.history["on_clients/loss"], there.history["loss"], rtol=1e-9)
    np.testing.assert_allclose(
        run.history["on_clients/accuracy"], there.history["accuracy"], rtol=1e-9
    )
    (found,) = server.measure(run)
    assert found.vectors["test_samples"] == [3, 6, 1, 0]
    assert [math.isnan(v) for v in found.vectors["accuracy"]] == [False, False, False, True]
    assert "its loss" in found.leaves


def test_a_run_is_measured_where_it_ended_also_by_another_server(tmp_path: Path) -> None:
    probes = [m.Dissimilarity(), m.ControlLag()]
    here = Federation(tmp_path / "clients", SCAFFOLD, measures=probes)
    kept = fl.Checkpoints(tmp_path / "server", every=1)
    here.server().run(3, measures=[], checkpoints=kept)
    server = here.server()
    run = server.run(3, measures=[], checkpoints=kept, resume=kept.folder)
    there = here.simulated(3)
    for found, probe in zip(server.measure(run, *probes), probes, strict=True):
        expected = m.take(there, probe)
        assert found.where == "round 3"
        for name, value in expected.values.items():
            assert math.isclose(found[name], value, rel_tol=1e-9, abs_tol=1e-12), name


def test_clients_that_do_not_answer_a_measure_are_left_out_of_it(tmp_path: Path) -> None:
    here = Federation(tmp_path, SCAFFOLD, measures=[m.Dissimilarity(), m.Alpha()])
    here.transport.before = lambda node, order: (
        node != 101 or not Order.unpack(order).header.measuring
    )
    server = here.server()
    run = server.run(2)
    torch.testing.assert_close(run.state.x, here.simulated(2).state.x, rtol=0, atol=1e-10)
    found, alpha = server.measure(run)
    others = m.take(here.simulated(2), _Some(), engine="loop")
    assert found.clients == alpha.clients == 3
    assert "from 3 of 4 clients" in found.notes[0]
    assert math.isclose(found["A"], others["A"], rel_tol=1e-9)


class _Some(m.Dissimilarity):
    """With all clients but the second."""

    def take(self, at: m.Place) -> m.Found:
        return super().take(replace(at, present=np.array([0, 2, 3])))


def test_a_measure_that_no_client_answers_is_named(tmp_path: Path) -> None:
    here = Federation(tmp_path, SCAFFOLD, measures=[m.OnClients()])
    here.transport.before = lambda node, order: not Order.unpack(order).header.measuring
    with pytest.raises(fl.FairleadError, match="0 clients have answered"):
        here.server().run(1)


def test_clients_measure_only_what_they_have_agreed_to(tmp_path: Path) -> None:
    here = Federation(tmp_path, SCAFFOLD, measures=[m.Dissimilarity(pairs=False)])
    for other in (m.OnClients(), m.Dissimilarity(), m.ClientDrift()):
        with pytest.raises(fl.FairleadError, match="have not agreed"):
            here.server().run(1, measures=[other])
    seen: list[bytes] = []
    here.transport.before = lambda node, order: seen.append(order) or True
    server = here.server()
    server.run(1, drift=True)  # of what they upload anyway
    assert math.isfinite(server.run(2, drift=True).history.last("drift"))
    orders = [Order.unpack(o) for o in seen]
    real = next(o for o in orders if o.header.measuring and o.message.client == 0)  # pyright: ignore[reportOptionalMemberAccess]
    assert real.message is not None
    answers = {}
    for k, program in enumerate(
        ["dissimilarity.summed", "curvature.spectrum", "dissimilarity.take", "dissimilarity.__init__",
         "dissimilarity.column", "dissimilarity.trial.take.local_steps", "dissimilarity", "", "dissimilarity.name"]
    ):  # fmt: skip
        told = replace(real.header, number=(2**62, k))
        order = Order(told, replace(real.message, program=program))
        answers[program] = Reply.unpack(here.clients[0].answer(order.pack()))
    good = answers.pop("dissimilarity.summed")
    assert good.message is not None
    assert not good.error
    assert not good.kept
    assert all(reply.error and reply.message is None for reply in answers.values())
    assert "not among those agreed on" in answers["curvature.spectrum"].error
    local = next(o for o in orders if o.message is not None and not o.header.measuring)
    assert local.message is not None
    inside = replace(local.header, number=(2**62, 99), measures=("client_drift",))
    order = Order(inside, replace(local.message, client=0))
    assert "client_drift is not among" in Reply.unpack(here.clients[0].answer(order.pack())).error


def test_clients_with_other_measures_in_their_agreement_are_refused(tmp_path: Path) -> None:
    here = Federation(tmp_path, SCAFFOLD, measures=[m.OnClients()])
    other = Federation(tmp_path / "other", SCAFFOLD)
    server = Server(here.server().task, other.agreement, here.transport, here.server().patience)
    with pytest.raises(fl.FairleadError, match="0 of 4 clients have come"):
        server.run(1)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_differential_privacy_with_noise_that_only_the_server_knows(
    noise: float, tmp_path: Path
) -> None:
    here = Federation(tmp_path / "clients", fl.DPFedAvg(lr=0.2, norm=0.1, noise=noise))
    server, there = here.server(), here.simulated(4).state.x
    server.book.secret = here.agreement.seed
    torch.testing.assert_close(server.run(4).state.x, there, rtol=0, atol=1e-10)
    x = here.server().run(4).state.x
    assert torch.allclose(x, there, rtol=0, atol=1e-10) == (noise == 0)


def test_noise_of_the_server_is_the_same_after_a_restart(tmp_path: Path) -> None:
    here = Federation(tmp_path / "clients", fl.DPFedAvg(lr=0.2, norm=0.1, noise=1.0))
    kept = fl.Checkpoints(tmp_path / "server", every=1)
    first = here.server()
    first.run(2, checkpoints=kept)
    again = here.server()
    x = again.run(4, checkpoints=kept, resume=kept.folder).state.x
    assert again.book.secret == first.book.secret
    whole = here.server()
    whole.book.secret = first.book.secret
    torch.testing.assert_close(whole.run(4).state.x, x, rtol=0, atol=1e-10)
    assert not any(
        str(first.book.secret).encode() in p.read_bytes()
        for p in here.folder.rglob("*")
        if p.is_file()
    )
