"""Measures of trial rounds: drift inside rounds, α, the error of compressors, CKA."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from conformance import METHODS
from conftest import toy, uneven

import fairlead as fl

A, B = np.array([1.0, 3.0, 0.5, 2.0]), np.array([-1.0, 1.0, 4.0, -3.0])


def _paths(lr: float, steps: int) -> np.ndarray:
    """The points (steps, clients) of local gradient steps on the toy from 0."""
    y, found = np.zeros(4), []
    for _ in range(steps):
        y = y - lr * A * (y - B)
        found.append(y)
    return np.array(found)


@pytest.mark.parametrize("engine", ["vmap", "loop", "debug"])
def test_local_points_by_hand(engine: str) -> None:
    y = _paths(0.1, 3)
    found = fl.measure.local_points(toy(), method=fl.FedAvg(lr=0.1), steps=3, engine=engine)
    mean = y.mean(1)
    f = [np.mean(0.5 * A * m**2 - A * B * m) for m in mean]
    before = np.vstack([np.zeros(4), y[:-1]])
    expected = {
        "client_drift": np.mean(y**2), "shadow_drift": np.mean((y - mean[:, None]) ** 2),
        "xi": np.mean((before - mean[-1]) ** 2), "shadow_loss": np.mean(f),
    }  # fmt: skip
    assert dict(found.values) == pytest.approx(expected, rel=1e-10)


def test_client_drift_is_that_of_the_round_that_follows() -> None:
    settings = {"steps": 4, "batch_size": 3, "seed": 2, "engine": "vmap"}
    run = fl.train(
        uneven(), fl.Scaffold(lr=0.1), rounds=3, measures=[fl.measure.LocalPoints(), fl.measure.ClientDrift()],
        **settings,
    )  # fmt: skip
    tried, taken = run.history["local/client_drift"], run.history["client_drift"]
    np.testing.assert_allclose(tried[:-1], taken[1:], rtol=1e-9)


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_alpha_by_hand(engine: str) -> None:
    """∇f_i is linear: ẽ_i = a_i(w_i − w̄)."""
    y = _paths(0.1, 4)[:-1]
    e = A * (y - y.mean(1, keepdims=True))
    expected = (e.sum(1) ** 2 / (e**2).sum(1)).max()
    found = fl.measure.alpha(toy(), method=fl.FedAvg(lr=0.1), steps=4, engine=engine)
    assert found.value == pytest.approx(expected, rel=1e-10)
    assert found["share"] == pytest.approx(expected / 4, rel=1e-10)
    with pytest.raises(fl.FairleadError, match="at least two local steps"):
        fl.measure.alpha(toy(), method=fl.FedAvg(lr=0.1), steps=1)


def test_alpha_is_at_most_n_and_zero_for_equal_curvature() -> None:
    """Σẽ_i = a·Σ(w_i − w̄) = 0 where all clients have the same Hessian; α ≤ n by Cauchy and Schwarz."""
    same = fl.problems.random_quadratics(clients=5, delta=0.0)
    assert fl.measure.alpha(same, method=fl.FedAvg(lr=0.1), steps=5).value < 1e-20
    for method in (fl.FedGLOMO(lr=0.1), fl.Scaffold(lr=0.1), fl.Catalyst(fl.ScaffoldS(lr=0.1))):
        found = fl.measure.alpha(uneven(), method=method, steps=5, batch_size=4)
        assert 0 < found.value <= 5


def test_a_method_that_marks_no_points_is_said_so() -> None:
    found = fl.measure.local_points(toy(), method=fl.FedSGD(lr=0.1))
    assert not found.values
    assert "not measured inside rounds" in found.notes[0]
    with pytest.raises(fl.FairleadError, match="pass method=…"):
        fl.measure.local_points(toy())


def test_the_error_of_a_compressor() -> None:
    """QSGD stays below min(d/s², √d/s); an identity has no error; no compressor is refused."""
    task = uneven()
    for bits in (2, 4):
        found = fl.measure.compression(
            task, method=fl.FedPAQ(lr=0.1, compressor=fl.QSGD(bits=bits)), steps=2
        )
        s = 2 ** (bits - 1) - 1
        assert 0 < found["q"] <= found["q_max"]
        assert found["q"] < min(task.dim / s**2, math.sqrt(task.dim) / s)
    share = 0.25
    top = fl.measure.compression(task, method=fl.FedPAQ(lr=0.1, compressor=fl.TopK(share)), steps=2)
    assert top["q_max"] <= 1 - share + 0.02
    for engine in ("vmap", "loop"):
        same = fl.measure.compression(
            task, method=fl.FedPAQ(lr=0.1, compressor=fl.QSGD(bits=2)), steps=2, engine=engine
        )
        assert same["q"] == pytest.approx(
            fl.measure.compression(
                task, method=fl.FedPAQ(lr=0.1, compressor=fl.QSGD(bits=2)), steps=2
            )["q"]
        )
    with pytest.raises(fl.FairleadError, match="no compressor"):
        fl.measure.compression(task, method=fl.FedAvg(lr=0.1), steps=2)


def test_cka_of_features() -> None:
    """1 for the same features, rotated and scaled ones, and shifted ones; by the formula with features."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 7, generator=draw, dtype=torch.float64)
    y = torch.randn(40, 90, generator=draw, dtype=torch.float64)  # more features than inputs
    turn = torch.linalg.qr(torch.randn(7, 7, generator=draw, dtype=torch.float64))[0]
    assert fl.measure.linear_cka(x, x) == pytest.approx(1, abs=1e-12)
    assert fl.measure.linear_cka(x, 5 * x @ turn + 3) == pytest.approx(1, abs=1e-12)
    assert fl.measure.linear_cka(x, y) == pytest.approx(fl.measure.linear_cka(x @ turn, -2 * y))
    a, b = x - x.mean(0), y - y.mean(0)
    norm = torch.linalg.matrix_norm
    expected = norm(b.T @ a) ** 2 / (norm(a.T @ a) * norm(b.T @ b))
    assert fl.measure.linear_cka(x, y) == pytest.approx(float(expected), rel=1e-12)
    with pytest.raises(fl.FairleadError, match="the same inputs"):
        fl.measure.linear_cka(x, y[:3])


def test_cka_of_clients() -> None:
    task = uneven()
    how = {"method": fl.FedAvg(lr=0.5), "steps": 5, "batch_size": 4, "samples": 20, "clients": None}
    found = fl.measure.cka(task, engine="vmap", **how)
    other = fl.measure.cka(task, engine="loop", **how)
    assert set(found.values) == {"", "1", "3"}
    assert dict(found.values) == pytest.approx(dict(other.values), rel=1e-9)
    pairs = np.array(found.vectors["pairs"]["3"])
    np.testing.assert_allclose(np.diag(pairs), 1, rtol=1e-12)
    np.testing.assert_allclose(pairs, pairs.T, rtol=1e-12)
    assert found["3"] == pytest.approx(pairs[~np.eye(5, dtype=bool)].mean())
    # by the models that the clients end with
    ends = {}

    class Keeping(fl.FedAvg):
        def local_steps(self, client, x):
            sent = super().local_steps(client, x)
            ends[client.rows[0] if hasattr(client, "rows") else client.row] = x + sent.dy
            return sent

    fl.train(task, Keeping(lr=0.5), rounds=1, steps=5, batch_size=4, engine="debug")
    outputs = [
        torch.func.functional_call(
            task.evaluation_model, task.state_dict(ends[i]), (task.test[0][:20],)
        )
        for i in (1, 4)
    ]
    assert pairs[1, 4] == pytest.approx(fl.measure.linear_cka(*outputs), rel=1e-9)
    still = fl.measure.cka(task, **{**how, "method": fl.FedAvg(lr=1e-12)})
    assert still.value == pytest.approx(1, abs=1e-9)
    with pytest.raises(fl.FairleadError, match="held-out inputs"):
        fl.measure.cka(toy(), method=fl.FedAvg(lr=0.1), steps=2)


def test_drift_diversity_of_equal_and_of_orthogonal_clients() -> None:
    """ξ is 1/S where all clients move the same way, and 1 where they move at right angles."""
    clients = 4
    eye = np.eye(clients)
    same = fl.problems.quadratics([eye] * clients, [np.ones(clients)] * clients)
    apart = fl.problems.quadratics([eye] * clients, eye)
    for task, expected in ((same, 1 / clients), (apart, 1.0)):
        run = fl.train(task, fl.FedAvg(lr=0.1), rounds=1, steps=3, drift=True)
        assert run.history.last("drift") == pytest.approx(expected, rel=1e-12)


def test_drift_diversity_outside_the_part() -> None:
    task = uneven()
    how: dict[str, Any] = {"rounds": 1, "steps": 3, "drift": True, "eval_every": 1}
    run = fl.train(task, fl.FedPVR(lr=0.1, layers=["3"]), **how)
    only = fl.train(task, fl.FedPVR(lr=0.1, layers=["3.bias", "3.weight", "1.bias"]), **how)
    assert only.history.last("drift_rest") == pytest.approx(only.history.last("drift/1.weight"))
    assert run.history.last("drift_rest") not in (
        run.history.last("drift/1.weight"),
        run.history.last("drift"),
    )
    assert "drift_rest" not in fl.train(task, fl.Scaffold(lr=0.1), **how).history


def test_control_lag_by_hand() -> None:
    """After a round of one step c_i is the gradient at the round's start."""
    run = fl.train(toy(), fl.Scaffold(lr=0.1), rounds=1, steps=1)
    x, c = float(run.x), -A * B
    found = fl.measure.control_lag(run)
    assert found.value == pytest.approx(np.mean((c - A * (x - B)) ** 2), rel=1e-10)
    best = float(toy().optimum)
    assert found["C"] == pytest.approx(np.mean((c - A * (best - B)) ** 2), rel=1e-10)
    with pytest.raises(fl.FairleadError, match="keeps no control variates"):
        fl.measure.control_lag(fl.train(toy(), fl.FedAvg(lr=0.1), rounds=1, steps=1))


def test_control_lag_of_a_part() -> None:
    task = uneven()
    run = fl.train(task, fl.FedPVR(lr=0.1, layers=-1), rounds=2, steps=2, batch_size=5)
    found = fl.measure.control_lag(run)
    part = slice(task.layers["3.weight"].start, task.dim)
    from test_heterogeneity import _by_hand

    apart = run.client_states().c - _by_hand(task, run.x)[:, part]
    assert found.value == pytest.approx(float((apart**2).sum(1).mean()), rel=1e-9)
    assert "zeta_hat_rest" in fl.measure.dissimilarity(run).values


UNMARKED = {"fedsgd", "minibatch-sgd", "mirror-descent", "mirror-prox"}
"""Methods without local steps."""
OF_EACH_KIND = {type(method): name for name, method in METHODS.items()}.values()


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_every_method_can_be_listened_to(name: str) -> None:
    """A trial round leads where the method's own round leads, and the points it marks are heard."""
    task, method = uneven(), METHODS[name]
    how: dict[str, Any] = {"steps": 2, "batch_size": 4, "engine": "vmap", "seed": 3}
    seen: dict[str, torch.Tensor] = {}

    class Looking(fl.measure.LocalPoints):
        def take(self, at: fl.measure.Place) -> fl.measure.Found:
            after, heard = at.exchanges.trial(at.state, np.arange(at.clients), self.hear, {})
            seen.update(heard, after=after.x)
            return fl.measure.Found({})

    run = fl.train(task, method, rounds=1, measures=[Looking()], every=2, **how)
    torch.testing.assert_close(seen["after"], run.x, rtol=1e-12, atol=1e-14)
    assert ("moved" in seen) == (name not in UNMARKED)
