"""More than means: rows, medians, trimmed and clipped means, FedExP and DP-FedAvg."""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import uneven
from torch import Tensor

import fairlead as fl
from fairlead.engine.exchange import server_noise

linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")
WORK: dict[str, Any] = {"rounds": 2, "cohort": 4, "batch_size": 4, "epochs": 1, "seed": 3}


def line(starts: list[float], start: float = 0.0) -> fl.Task:
    """f_i(x) = (x − b_i)²/2: with one step of size one, client i ends at b_i."""
    return fl.problems.quadratics([[[1.0]]] * len(starts), [[b] for b in starts], [start])


def one_round(task: fl.Task, aggregate: Any, **more: Any) -> float:
    return fl.train(task, fl.FedAvg(1.0, aggregate=aggregate), rounds=1, steps=1, **more).x.item()


# -- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weighing(fl.FedAvg):
    """Steps along a sum of the rows that depends on their order and on the clients' weights."""

    def sees_each(self) -> bool:
        return True

    def round(self, s: Any, cohort: fl.Cohort) -> Any:
        replies = cohort.run(self.local_steps, x=s.x)
        rows, weights = replies.each.dy, replies.weights
        assert rows.shape == (replies.count, len(s.x))
        torch.testing.assert_close(weights @ rows, replies.mean.dy, rtol=0, atol=1e-12)
        order = torch.arange(1, len(rows) + 1, dtype=rows.dtype)
        return type(s)(x=s.x + 0.1 * order @ rows + 0.01 * replies.noise(s.x), slots={})


@linux
@pytest.mark.parametrize("compressor", [None, fl.QSGD(4)])
def test_rows_are_the_cohorts_in_order_in_every_engine(compressor: Any) -> None:
    method = Weighing(0.1, compressor=compressor)
    work = {**WORK, "steps": [1, 5, 3, 4, 2], "epochs": None, "weighting": "size", "dropout": 0.2}
    reference = fl.train(uneven(), method, engine="debug", **work)
    for how in (
        {"engine": "vmap"}, {"engine": "loop"}, {"engine": fl.Simulate("vmap", memory=1)},
        {"engine": "vmap", "workers": 2}, {"engine": "loop", "workers": 3},
        {"engine": "vmap", "workers": 5},
    ):  # fmt: skip
        run = fl.train(uneven(), method, **how, **work)
        torch.testing.assert_close(run.x, reference.x, rtol=0, atol=1e-10)
    seed = work.pop("seed")
    many = fl.train_many(uneven(), [(method, seed), (method, seed + 1)], **work)
    torch.testing.assert_close(many[0].x, reference.x, rtol=0, atol=1e-10)


def test_rows_are_those_of_clients_alone() -> None:
    found: list[Tensor] = []

    @dataclass(frozen=True)
    class Noting(fl.FedAvg):
        def sees_each(self) -> bool:
            return True

        def round(self, s: Any, cohort: fl.Cohort) -> Any:
            found.append(cohort.run(self.local_steps, x=s.x).each.dy)
            return s

    cohort, start = [4, 0, 2], uneven().start(0)[0]
    settings = {"rounds": 1, "batch_size": 4, "epochs": 1}
    fl.train(uneven(), Noting(0.1), cohort=[cohort], **settings)
    for row, client in zip(found[-1], sorted(cohort), strict=True):
        alone = fl.train(uneven(), fl.FedAvg(0.1), cohort=[[client]], **settings)
        torch.testing.assert_close(start + row, alone.x, rtol=0, atol=1e-13)


def test_a_method_that_does_not_ask_for_rows_is_told_how() -> None:
    @dataclass(frozen=True)
    class Curious(fl.FedAvg):
        def round(self, s: Any, cohort: fl.Cohort) -> Any:
            return cohort.run(self.local_steps, x=s.x).each

    with pytest.raises(fl.FairleadError, match="define `sees_each`"):
        fl.train(uneven(), Curious(0.1), rounds=1)


def test_rows_count_as_memory_of_the_server() -> None:
    plain, rows = (fl.needs(uneven(), m, rounds=1) for m in (fl.FedAvg(0.1), fl.DPFedAvg(0.1)))
    assert rows.server - plain.server == 5 * uneven().dim * 8


# -- aggregations ---------------------------------------------------------------------------------


def test_medians_and_trimmed_means_by_hand() -> None:
    five, four = [3.0, -1.0, 10.0, 4.0, 0.0], [3.0, -1.0, 10.0, 4.0]
    for values in (five, four, [2.0], [2.0, 5.0]):
        assert one_round(line(values), fl.aggregate.Median()) == statistics.median(values)
    trimmed = fl.aggregate.TrimmedMean
    assert one_round(line(five), trimmed(0.2)) == pytest.approx((3 + 4 + 0) / 3)
    assert one_round(line(five), trimmed(0.01)) == pytest.approx((3 + 4 + 0) / 3)  # rounded up
    assert one_round(line(five), trimmed(0.0)) == pytest.approx(statistics.mean(five))
    assert one_round(line(five), trimmed(0.4)) == one_round(line(five), trimmed(0.5)) == 3.0
    assert one_round(line(five), trimmed(0.2), weighting=[9, 1, 1, 1, 1]) == pytest.approx(7 / 3)


@pytest.mark.parametrize("evil", [1e9, -1e9, math.inf, math.nan])
@pytest.mark.parametrize("aggregate", [fl.aggregate.Median(), fl.aggregate.TrimmedMean(0.2)])
def test_one_hostile_client_of_five_stays_without_effect(aggregate: Any, evil: float) -> None:
    """What it sends does not move a coordinate out of the range of the honest ones."""

    @dataclass(frozen=True)
    class Attacked(fl.FedAvg):
        def local_steps(self, client: Any, x: Tensor) -> Any:
            sent = super().local_steps(client, x)
            hostile = client.keys[:, None] == 2 if sent.dy.dim() == 2 else client.keys == 2
            return type(sent)(dy=torch.where(hostile, torch.full_like(sent.dy, evil), sent.dy))

    task = fl.problems.random_quadratics(clients=5, dim=6, gradient=3.0, seed=4)
    ends = torch.stack(
        [fl.train(task, fl.FedAvg(0.2), rounds=1, steps=3, cohort=[[i]]).x for i in (0, 1, 3, 4)]
    )
    for engine in ("vmap", "loop"):
        how = {"rounds": 1, "steps": 3, "engine": engine}
        x = fl.train(task, Attacked(0.2, aggregate=aggregate), **how).x
        assert (x >= ends.min(0).values - 1e-12).all()
        assert (x <= ends.max(0).values + 1e-12).all()
    moved = fl.train(task, Attacked(0.2), **how)
    inside = (moved.x >= ends.min(0).values) & (moved.x <= ends.max(0).values)
    assert moved.stopped == "diverged" or not inside.all()


def test_clipped_means_by_hand() -> None:
    """Of the steps (3, 4) and (0, 1), the first is shortened to norm one."""
    eye = [[1.0, 0.0], [0.0, 1.0]]
    task = fl.problems.quadratics([eye, eye], [[3.0, 4.0], [0.0, 1.0]], [0.0, 0.0])
    clipped = fl.FedAvg(1.0, aggregate=fl.aggregate.ClippedMean(1.0))
    run = fl.train(task, clipped, rounds=1, steps=1)
    torch.testing.assert_close(run.x, torch.tensor([0.3, 0.9]).double())
    noisy = fl.FedAvg(1.0, aggregate=fl.aggregate.ClippedMean(1.0, 0.5))
    noise = server_noise(7, 0, 1, run.x)
    found = fl.train(task, noisy, rounds=1, steps=1, seed=7).x
    torch.testing.assert_close(found, run.x + 0.5 * 1.0 / 2 * noise)
    still = fl.problems.quadratics([eye], [[0.0, 0.0]], [0.0, 0.0])
    assert fl.train(still, clipped, rounds=1, steps=1).x.tolist() == [0.0, 0.0]


def test_the_norm_is_that_of_a_whole_upload() -> None:
    class Two(fl.Upload):
        a: Tensor
        b: Tensor

    rows = Two(a=torch.tensor([[3.0, 0.0], [0.1, 0.0]]), b=torch.tensor([[4.0], [0.2]]))
    replies = fl.Replies(rows, 2, 1.0, torch.ones(2) / 2, rows, torch.randn_like)
    mean = replies.clipped_mean(1.0)
    torch.testing.assert_close(mean.a, torch.tensor([0.35, 0.0]))
    torch.testing.assert_close(mean.b, torch.tensor([0.5]))


@pytest.mark.parametrize(
    "method",
    [
        fl.FedAvg(0.1, aggregate=fl.aggregate.Median()),
        fl.FedAvg(0.1, aggregate=fl.aggregate.TrimmedMean(0.2)),
        fl.FedAvg(0.1, aggregate=lambda replies: replies.clipped_mean(1.0, 0.1)),
        fl.FedExP(0.1),
        fl.DPFedAvg(0.1),
    ],
)
def test_the_ledger_does_not_change(method: fl.Algorithm) -> None:
    """That its bits are those of real bytes is tested for every row of the conformance table."""
    run, plain = (fl.train(uneven(), m, dropout=0.2, **WORK) for m in (method, fl.FedAvg(0.1)))
    for one, two in zip(run.ledger.exchanges, plain.ledger.exchanges, strict=True):
        assert (one.up.tolist(), one.down) == (two.up.tolist(), two.down)
    assert run.ledger.up == plain.ledger.up > 0


def test_proximal_and_quantized_steps_are_aggregated_too() -> None:
    def trimmed(replies: fl.Replies) -> Any:
        return replies.trimmed_mean(0.0)

    for kind, more in ((fl.FedProx, {"mu": 0.5}), (fl.FedPAQ, {}), (fl.ExtraStep, {})):
        run = fl.train(uneven(), kind(0.1, aggregate=trimmed, **more), **WORK)
        plain = fl.train(uneven(), kind(0.1, **more), **WORK)
        torch.testing.assert_close(run.x, plain.x, rtol=0, atol=1e-13)  # trims nothing


def test_catalyst_has_that_of_its_inner_method() -> None:
    inner = fl.FedAvg(0.1, aggregate=fl.aggregate.Median())
    run = fl.train(uneven(), fl.Catalyst(inner, theta=0.0), **WORK)
    plain = fl.train(uneven(), inner, **WORK)
    torch.testing.assert_close(run.x, plain.x, rtol=0, atol=1e-13)


# -- FedExP ---------------------------------------------------------------------------------------


def test_fedexp_by_hand() -> None:
    """Steps of −1.5 and 2 (see FedAvg's test): η_g = ½(2.25 + 4)/(2·0.0625) = 25."""
    task = fl.problems.quadratics([[[1.0]], [[2.0]]], [[0.0], [8.0]], [2.0])
    settings = {"rounds": 1, "steps": 2}
    assert fl.train(task, fl.FedExP(0.5, eps=0.0), **settings).x.item() == 2 + 25 * 0.25
    damped = fl.train(task, fl.FedExP(0.5, eps=0.0625), **settings).x.item()
    assert damped == 2 + 12.5 * 0.25
    weighted = fl.train(task, fl.FedExP(0.5, eps=0.0), weighting=[3.0, 1.0], **settings).x.item()
    mean = 0.75 * -1.5 + 0.25 * 2
    assert weighted == pytest.approx(2 + (0.75 * 2.25 + 0.25 * 4) / (2 * mean**2) * mean)


def test_fedexp_means_the_last_two_iterates_and_eps_may_be_a_schedule() -> None:
    task = line([3.0, -1.0, 0.5], start=2.0)
    settings = {"steps": 2, "cohort": [[0, 1], [1, 2], [0, 2]]}
    eps = fl.schedules.Exponential(0.4, 0.25)
    plain = [fl.train(task, fl.FedExP(0.3, eps=eps), rounds=k, **settings).x for k in (1, 2, 3)]
    means = [
        fl.train(task, fl.FedExP(0.3, eps=eps, average=True), rounds=k, **settings).x
        for k in (1, 2, 3)
    ]
    assert torch.equal(means[0], plain[0])
    torch.testing.assert_close(means[1], (plain[0] + plain[1]) / 2)
    torch.testing.assert_close(means[2], (plain[1] + plain[2]) / 2)
    # the first round by hand: from 2 with (1 − 0.3)² = 0.49 of the way left, ε = 0.4
    steps = [0.51 * (b - 2.0) for b in (3.0, -1.0)]
    mean, spread = sum(steps) / 2, sum(d**2 for d in steps) / 2
    expected = 2.0 + max(1.0, spread / (2 * (mean**2 + 0.4))) * mean
    assert plain[0].item() == pytest.approx(expected)


def test_fedexp_with_clients_that_agree_is_fedavg() -> None:
    same = line([3.0, 3.0, 3.0])
    settings = {"rounds": 3, "steps": 2}
    a, b = (fl.train(same, m, **settings).x for m in (fl.FedExP(0.3), fl.FedAvg(0.3)))
    assert torch.equal(a, b)


# -- DP-FedAvg ------------------------------------------------------------------------------------


def test_dp_fedavg_by_hand() -> None:
    """Steps of 3 and −0.5 with norm 1: the mean of 1 and −0.5, plus z·C/S times the server's noise."""
    task, settings = line([3.0, -0.5]), {"rounds": 1, "steps": 1, "seed": 5}
    quiet = fl.train(task, fl.DPFedAvg(1.0, norm=1.0, noise=0.0), **settings).x
    assert quiet.item() == 0.25
    x = fl.train(task, fl.DPFedAvg(1.0, norm=1.0, noise=0.4, server_lr=2.0), **settings).x
    torch.testing.assert_close(x, 2 * (quiet + 0.4 / 2 * server_noise(5, 0, 1, quiet)))


def test_dp_fedavg_without_clipping_and_noise_is_fedavg() -> None:
    run = fl.train(uneven(), fl.DPFedAvg(0.1, norm=1e6, noise=0.0), **WORK)
    plain = fl.train(uneven(), fl.FedAvg(0.1), **WORK)
    torch.testing.assert_close(run.x, plain.x, rtol=0, atol=1e-13)


def test_the_noise_has_its_standard_deviation_and_is_new_in_every_round() -> None:
    d, clients = 4000, 4
    data = torch.zeros(clients, d), torch.zeros(clients)
    parts = [range(k, k + 1) for k in range(clients)]
    flat = fl.Task(torch.nn.Linear(d, 1, bias=False), lambda out, y: 0.0 * out[..., 0], data, parts)
    found = [
        fl.train(flat, fl.DPFedAvg(0.1, norm=3.0, noise=0.5), rounds=k, steps=1).x
        - flat.start(0)[0]
        for k in (1, 2)
    ]
    first, second = found[0], found[1] - found[0]
    for noise in (first, second):
        assert float(noise.std()) == pytest.approx(0.5 * 3.0 / clients, rel=0.05)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.07


def test_models_whose_statistics_would_leave_without_noise_are_refused() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    x, y = torch.randn(20, 5), torch.arange(20) % 3
    task = fl.Task(net, "cross_entropy", (x, y), [range(10), range(10, 20)])
    for method in (fl.DPFedAvg(0.1), fl.Catalyst(fl.DPFedAvg(0.1))):
        with pytest.raises(fl.FairleadError, match="DPFedAvg cannot train this model, as the stat"):
            fl.train(task, method, rounds=1)
    fl.train(task, fl.FedAvg(0.1), rounds=1, steps=1)


def test_the_accountant_bounds_the_exact_privacy_of_gaussian_noise() -> None:
    """With everyone in every round, T rounds are one Gaussian mechanism with noise z/√T, whose δ is known."""
    pytest.importorskip("dp_accounting")

    def delta(epsilon: float, sigma: float) -> float:
        normal = statistics.NormalDist()
        one, two = 0.5 / sigma - epsilon * sigma, -0.5 / sigma - epsilon * sigma
        return normal.cdf(one) - math.exp(epsilon) * normal.cdf(two)

    for sampling, factor in (("poisson", 1.0), ("fixed", 2.0)):
        method = fl.DPFedAvg(0.1, noise=20.0)
        epsilon = method.epsilon(1e-5, rounds=64, clients=100, cohort=100, sampling=sampling)
        sigma = 20.0 / factor / math.sqrt(64)
        assert delta(epsilon, sigma) <= 1e-5
        assert delta(0.85 * epsilon, sigma) > 1e-5  # and not by much
    few = method.epsilon(1e-5, rounds=64, clients=100, cohort=10)
    assert few < epsilon
    assert fl.DPFedAvg(0.1, noise=40.0).epsilon(1e-5, 64, 100, 10) < few
    assert method.epsilon(1e-5, rounds=128, clients=100, cohort=10) > few


def test_the_accountant_is_asked_for_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(fl.FairleadError, match=r"pip install dp-accounting"):
        fl.DPFedAvg(0.1).epsilon(1e-5, 10, 100, 10)


def test_wrong_settings_are_refused() -> None:
    for make, message in (
        (lambda: fl.FedAvg(0.1, aggregate="median"), "pass one such as fl.aggregate.Median"),
        (lambda: fl.aggregate.TrimmedMean(0.6), "share is 0.6"),
        (lambda: fl.aggregate.ClippedMean(0.0), "norm is 0.0"),
        (lambda: fl.DPFedAvg(0.1, noise=-1.0), "noise is -1.0"),
        (lambda: fl.DPFedAvg(0.1, aggregate=fl.aggregate.Median()), "does not support aggregate"),
        (lambda: fl.FedExP(0.1, server_lr=2.0), "does not support server_lr: the server's step"),
        (lambda: fl.FedExP(0.1, eps=-1.0), "eps is -1.0"),
        (
            lambda: fl.Scaffold(0.1, aggregate=fl.aggregate.Median()),
            "c is the mean of the clients'",
        ),
        (lambda: fl.DPFedAvg(0.1).epsilon(1e-5, 1, 10, 11), "cohort is 11"),
        (lambda: fl.DPFedAvg(0.1).epsilon(1e-5, 1, 10, 5, "uniform"), "there is no sampling"),
    ):
        with pytest.raises(fl.FairleadError, match=message):
            make()


def test_citations() -> None:
    assert "jhunjhunwala2023fedexp" in fl.cite("fedexp")
    assert "mcmahan2018learning" in fl.cite(fl.DPFedAvg(0.1))
    assert "yin2018byzantine" in fl.cite(fl.FedAvg(0.1, aggregate=fl.aggregate.Median()))
