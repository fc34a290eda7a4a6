"""Constants, conditions, rates, advice and figures."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fairlead as fl
from fairlead.theory import (
    GIVEN_BY,
    TABLES,
    Bound,
    Condition,
    Constants,
    Settings,
    best_steps,
    bound_figure,
    bounds,
    fedavg,
    fedavg_alpha,
    fedavg_lower,
    fedavg_s,
    fedavg_shadow,
    fedglomo,
    fedlomo,
    fedpvr,
    rate,
    rates,
    scaffold,
    scaffold_nonconvex,
    scaffold_quadratics,
    scaffold_s,
    scaffold_s_anchor,
    scaffold_s_similar,
    when_it_pays,
)
from fairlead.theory.bound import inverse_weight

ALL = Constants(
    mu=0.1, beta=1.0, delta=0.05, sigma=0.5, G=2.0, B=1.5, zeta_max=0.3, zeta_pair=0.4, zeta_rest=0.1,
    zeta_hat_rest=0.2, beta_p=0.7, alpha=2.0, q=0.0, D=2.0, F=1.5, f0=3.0, C0=0.6, sigma0=0.8,
)  # fmt: skip


def test_a_missing_constant_is_named_with_its_measure() -> None:
    with pytest.raises(
        fl.FairleadError, match=r"delta is not known: measure the Hessian dissimilarity"
    ):
        scaffold_quadratics(Constants(mu=0.1, beta=1.0, F=1.0), Settings(4), 10)
    assert set(GIVEN_BY) == set(Constants.__dataclass_fields__)


@pytest.mark.parametrize(
    "wrong", [{"mu": -0.1}, {"D": math.inf}, {"sigma": math.nan}, {"mu": 2.0, "beta": 1.0}]
)
def test_impossible_constants_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(fl.FairleadError, match="is"):
        Constants(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"cohort": 5}, {"cohort": 0}, {"lr": 0.0}, {"server_lr": -1.0}, {"sync": 1.5}],
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(fl.FairleadError, match="must be"):
        Settings(4, **wrong)  # pyright: ignore[reportArgumentType]


def test_fedavg_by_hand() -> None:
    """μ = 0, so W = R + 1: N = 4, S = 2, K = 5, η_g = 2, η̃ = 0.01."""
    known = Constants(mu=0.0, beta=1.0, sigma=1.0, G=2.0, B=1.0, D=3.0)
    bound = fedavg(known, Settings(4, 5, 2, lr=0.001, server_lr=2.0), rounds=99)
    noise, sampling, drift = 1 / 10 * (1 + 2 / 4), 4 * 4 / 2 * (1 - 2 / 4), 18 * 0.01 * 4
    assert bound.value == pytest.approx(3 * 9 / (0.01 * 100) + 0.03 * (noise + sampling + drift))
    assert bound.terms["start"] == pytest.approx(27)
    assert bound.holds


def test_scaffold_by_hand() -> None:
    known = Constants(mu=0.0, beta=1.0, sigma=1.0, D=3.0, C0=2.0)
    bound = scaffold(known, Settings(4, 5, 2, lr=0.001, server_lr=2.0), rounds=99)
    start = (9 + 9 * 4 / 2 * 1e-4 * 2) / (0.01 * 100)
    assert bound.value == pytest.approx(start + 12 * 0.01 / 10 * (1 + 2 / 4))


def test_the_other_theorems_by_hand() -> None:
    """With ALL: μ = 0.1, β = 1, σ = 0.5, D = 2, F = 1.5, f(w_0) = 3, α = 2; N = 10, K = 5, p = 1/5."""
    s, half = Settings(10, 5, lr=0.001), Settings(10, 5, 5)
    study = (
        4 / (2 * 0.001 * 5 * 100) + 0.001 * 0.25 / 10 + 4 * 5 * 1e-6 * 0.25 + 18 * 25 * 1e-6 * 0.09
    )
    assert fedavg_shadow(ALL, s, 100).value == pytest.approx(study)
    assert scaffold_nonconvex(ALL, s, 100).value == pytest.approx(
        14 * 1.5 / (0.005 * 100) + 70 * 0.005 * 0.25 / 50 * 11
    )
    gamma, steps = 0.2 * 0.1 / 80, 500
    h = 64 * 0.8 * 2.2 * 8.2 / (12 * 0.008)
    decay = math.exp(-gamma * 0.1 * steps / 8)
    by_66 = (4 / (2 * gamma) + 20 * h * gamma**2 * 0.8) * decay
    by_66 += gamma * 0.25 / 20 + 8 * 0.25 * gamma**2 / 0.02
    assert scaffold_s(ALL, Settings(10, 5), 100).value == pytest.approx(by_66)
    noiseless = replace(ALL, sigma=0.0)
    anchor = scaffold_s_anchor(noiseless, Settings(10, 5), 100)
    assert anchor.value == pytest.approx(2 * 4 / 0.02 * math.exp(-0.2 * 0.01 * steps / 8))
    similar = (
        scaffold_s_similar(ALL, Settings(10, 5), 100).terms,
        fedavg_s(ALL, Settings(10, 5), 100).terms,
    )
    assert similar[0]["drift"] == pytest.approx(20 * 0.025**2 * 4 * 9 * 0.16 * 25)
    assert similar[1]["drift"] == pytest.approx(20 * 0.025**2 * 4 * 4 * 0.16 * 25)
    assert similar[1]["noise drift"] == pytest.approx(20 * 0.025**2 * 2 * 0.25 * 5)
    rest = fedpvr(ALL, s, 100).terms
    assert rest["heterogeneity"] == pytest.approx(36 * 0.005 * 0.01)
    assert rest["noise"] == pytest.approx(0.005 * 0.25 / 50 * (24 + 117 * 10 / 80))
    b = 4 * 5 / (5 * 9)
    assert fedlomo(ALL, half, 400).printed == pytest.approx(64 * math.sqrt(b) * 3 / 20)
    factor = (2 + 0.8) / 10 + 800 * math.e**2 * 36 * 5 / (5 * 9)
    glomo = fedglomo(ALL, half, 400)
    assert glomo.printed == pytest.approx(39 * 3 * 400 ** (-2 / 3) * factor ** (1 / 3))
    assert glomo.value == pytest.approx((24 + 512 / 36) / 39 * glomo.printed)
    root = math.sqrt(3 * (1 / 54 + 8 / 90) * 400)
    alpha = 9 * root / 400 + (1 / 25 + 1 / 27) * 0.25 / root + (1 / 5 + 16 / 9) * 0.25 / root**2
    assert fedavg_alpha(ALL, half, 400).printed == pytest.approx(alpha)
    assert fedavg_alpha(noiseless, half, 400).lr * 5 == pytest.approx(
        1 / math.sqrt(6 * (4 / 27 + 8 / 90) * 400)
    )
    with_lemma = 1.5 * (1 - 0.1 * 0.001 / 6) ** 500
    assert scaffold_quadratics(noiseless, s, 100).value == pytest.approx(with_lemma)


def test_the_default_step_is_the_largest_allowed() -> None:
    s = Settings(10, 5, 4, server_lr=2.0)
    at = scaffold(ALL, s, 100)
    above = scaffold(ALL, Settings(10, 5, 4, lr=1.01 * at.lr, server_lr=2.0), 100)
    assert at.holds
    assert not above.holds
    assert at.lr * 10 == pytest.approx(min(1 / 81, 4 / (15 * 0.1 * 10)))
    assert fedavg(ALL, s, 100).lr * 10 == pytest.approx(1 / (8 * 3.25))


def test_weights_do_not_overflow() -> None:
    assert inverse_weight(0.01, 10**6) == pytest.approx(0.0, abs=1e-300)
    by_hand = 1 / sum(0.9**-r for r in range(7))
    assert inverse_weight(0.1, 7) == pytest.approx(by_hand)
    bound = Bound("", "", 1.0, (), 0.1, rate=0.3)
    weights = 0.7 ** -np.arange(5.0)
    values = np.arange(5.0)
    assert bound.average(values) == pytest.approx(weights @ values / weights.sum())
    assert bound.average(np.ones(10_000)) == pytest.approx(1.0)
    assert Bound("", "", 1.0, (), 0.1).average([3.0, 2.0]) == 2.0


def test_sampling_breaks_the_study_bound() -> None:
    s = Settings(20, 5, 2, lr=0.2)
    broken = [c for c in fedavg_shadow(ALL, s, 100).conditions if not c.holds]
    assert [c.words for c in broken] == ["all clients take part in every round"]
    assert not Condition("", 1.0 + 1e-6, 1.0).holds


def test_the_printed_range_of_local_steps_is_not_the_condition() -> None:
    """Figure 2 of the FedGLOMO paper: n = 50, r = 25, E = 10, K = 300, q = 0."""
    n, r, e, k = 50, 25, 10, 300
    assert e + 1 > (n - r) / (3 * r * (n - 1)) * k
    bound = fedglomo(ALL, Settings(n, e, r), k)
    assert bound.holds
    assert bound.conditions[1].left == pytest.approx(0.15, abs=0.005)


def test_fedlomo_has_fedglomos_rate_without_sampling_and_compression() -> None:
    values = [fedlomo(ALL, Settings(50, 10), k).value for k in (10**4, 8 * 10**4)]
    assert values[0] / values[1] == pytest.approx(4.0, rel=0.01)
    assert fedlomo(ALL, Settings(50, 10), 10**4).holds


def test_the_best_steps_of_the_lower_bound_cannot_be_improved() -> None:
    lr, x = best_steps(mu=1.0, gradient=5.0, start=1.0, steps=5, rounds=12)
    assert fedavg_lower(Constants(mu=1.0, G=5.0, D=1.0), Settings(2, 5), 12).value <= x[-1] ** 2 / 2

    def final(sizes: np.ndarray) -> float:
        point = 1.0
        for eta in sizes:
            one = two = point
            for _ in range(5):
                one, two = one - eta * (2 * one + 5), two + eta * 5
            point = (one + two) / 2
        return point

    assert final(lr) == pytest.approx(x[-1])
    for k in range(12):
        for factor in (0.9, 0.99, 1.01, 1.1):
            assert final(np.where(np.arange(12) == k, factor * lr, lr)) >= x[-1] * (1 - 1e-9)


def test_rates_say_what_the_papers_say() -> None:
    s = Settings(100, 10, 20)
    convex = rates("strongly convex", ALL, s, 1e-4)
    assert convex["FedAvg"] > convex["SCAFFOLD"]
    assert convex["FedAvg"] >= convex["FedAvg, at least"]
    homogeneous = Constants(mu=0.1, beta=1.0, sigma=0.0, G=0.0, B=1.0)
    alone = Settings(10, 5)
    pair = [rate("strongly convex", m, homogeneous, alone, 1e-4) for m in ("SGD", "FedAvg")]
    assert pair[0] == pair[1] == pytest.approx(10)
    saddle = rates("saddle", ALL, s, 1e-6)
    assert saddle["SCAFFOLD-Catalyst-S"] <= saddle["SCAFFOLD-S"] <= saddle["FedAvg-S"]
    updates = rates("gradient updates", ALL, s, 1e-4)
    assert next(iter(updates)) == "FedGLOMO"
    assert all(set(rates(name, ALL, s, 1e-2)) == set(TABLES[name]) for name in TABLES)


def test_unknown_rates_are_refused() -> None:
    with pytest.raises(fl.FairleadError, match="there is no table"):
        rates("convex-ish", ALL, Settings(4), 1e-3)
    with pytest.raises(fl.FairleadError, match="there is no method in the table"):
        rate("saddle", "SCAFOLD-S", ALL, Settings(4), 1e-3)
    with pytest.raises(fl.FairleadError, match="delta is not known"):
        rate("strongly convex", "DANE", Constants(mu=0.1), Settings(4), 1e-3)


def test_advice_with_all_constants() -> None:
    said = when_it_pays(ALL, Settings(10, 30, 5, lr=0.01), 1e-2, floor=1e-3, bits=8.0)
    assert said[0] == (
        "SCAFFOLD gains over SGD linearly in its local steps up to K = β/δ = 20: 30 are not fewer, so more "
        "of them would be wasted."
    )
    assert "the target 0.01 is above the floor 0.001" in said[1]
    assert "18τ²η²Lζ² = 0.146" in said[1]
    assert said[2] == "SCAFFOLD-S pays over FedAvg-S: ζ = 0.4 > β√ε = 0.1."
    assert said[3] == "FedAvg-S does not pay over mirror descent: (1−p)β√ε = 0.0967 ≤ ζ = 0.4."
    assert said[4] == "Catalyst pays over SCAFFOLD-S: ζ = 0.4 > μ√ε = 0.01; its θ is β − μ = 0.9."
    assert said[5] == "FedPVR is not as good as SCAFFOLD: ζ²_(1−p) = 0.01 ≥ σ²/(NK) = 0.000833."
    assert said[6].startswith("FedGLOMO pays over FedLOMO: B")
    assert (
        said[7]
        == "Compression pays where few clients take part: 8 bits times 1 + q = 1 are 8 < 32."
    )


def test_advice_says_what_is_missing() -> None:
    said = when_it_pays(Constants(beta=1.0), Settings(10), 1e-2, bits=8.0)
    assert said[0].startswith(
        "SCAFFOLD over SGD: not known without delta (the Hessian dissimilarity"
    )
    assert sum("not known without" in one for one in said) == 7
    assert all(one.endswith(".") for one in said)
    none = when_it_pays(Constants(mu=1.0, beta=1.0, zeta_pair=1.0, q=0.0), Settings(10), 1e-2)
    assert "the condition number β/μ is 1" in none[4]
    assert "B = 0" in none[6]


def test_bounds_of_a_curve_share_a_step_size() -> None:
    found = bounds(fedlomo, ALL, Settings(50, 5, 25), [100, 1000])
    assert found[0].lr == found[1].lr == fedlomo(ALL, Settings(50, 5, 25), 1000).lr


def test_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    measured = 0.5 * 0.99 ** np.arange(200)
    path = tmp_path / "bound.png"
    figure = bound_figure(scaffold, ALL, Settings(10, 5), measured, path)
    (axes,) = figure.axes
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert list(lines) == ["bound (at most)", "measured, the theorem's mean", "measured"]
    assert lines["bound (at most)"][-1] == scaffold(ALL, Settings(10, 5), 199).value
    assert (lines["measured, the theorem's mean"] <= lines["bound (at most)"]).all()
    assert axes.get_yscale() == "log"
    assert path.stat().st_size > 1000
    outside = bound_figure(fedavg_shadow, ALL, Settings(20, 5, 2, lr=0.2), measured)
    assert "not valid: all clients take part" in outside.axes[0].get_title()
    with pytest.raises(fl.FairleadError, match="at least two values"):
        bound_figure(scaffold, ALL, Settings(10, 5), [1.0])
