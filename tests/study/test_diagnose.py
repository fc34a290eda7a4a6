"""The diagnosis: the rule, the race, forecasts, links, the nine answers and their files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app
from fairlead.engine.accounting import Ledger
from fairlead.study.diagnose.forecast import rounds_to
from fairlead.study.diagnose.link import Link
from fairlead.study.diagnose.race import Race
from fairlead.study.diagnose.ranges import Range
from fairlead.study.diagnose.rule import (
    FAMILIES,
    PACKED,
    Candidate,
    Facts,
    extended,
    favourite,
    going_on,
    methods,
    more_steps,
    step_sizes,
    taken,
)
from fairlead.task.pooled import pooled

SETTINGS: dict[str, Any] = {"batch_size": 0.25}


def _digits(**more: Any) -> fl.Task:
    return fl.tasks.digits(**{"clients": 6, "split": "dirichlet", "split_value": 0.3, **more})


def _race(budget: float = 1e9, **more: Any) -> Race:
    return Race(_digits(), SETTINGS, budget, "loss", **more)


# -- the rule -------------------------------------------------------------------------------------


def test_the_ladder_of_step_sizes_starts_at_one_over_the_curvature() -> None:
    facts = Facts(clients=10, cohort=10, rounds=100, steps=10, layers=1, beta=4.0)
    assert [one.lr for one in step_sizes(facts)] == [1.0, 0.3, 0.1]
    assert {one.family for one in step_sizes(facts)} == {"FedAvg"}
    unmeasured = Facts(clients=10, cohort=10, rounds=100, steps=10, layers=1)
    assert step_sizes(unmeasured)[1].lr == 0.1


def test_the_ladder_is_extended_only_at_its_ends() -> None:
    tried = [Candidate("FedAvg", 5, lr) for lr in (1.0, 0.3, 0.1)]
    up, down = extended(tried, tried[0]), extended(tried, tried[2])
    assert up is not None
    assert up.lr == 3.0
    assert down is not None
    assert down.lr == 0.03
    assert extended(tried, tried[1]) is None


def test_methods_with_state_need_three_visits() -> None:
    rare = Facts(clients=100, cohort=2, rounds=100, steps=10, layers=3)
    lanes, reasons = methods(rare, 0.1)
    families = [one.family for one in lanes]
    assert rare.visits == 2.0
    assert "SCAFFOLD" not in families
    assert "FedPVR" not in families
    (reason,) = (reason for reason in reasons if "2.0 times in 100 rounds" in reason)
    assert "SCAFFOLD; SCAFFOLD with server momentum; FedPVR" in reason
    often = Facts(clients=100, cohort=3, rounds=100, steps=10, layers=3)
    assert {"SCAFFOLD", "FedPVR"} <= {one.family for one in methods(often, 0.1)[0]}


def test_one_layer_leaves_out_fedpvr_and_the_rest_is_always_there() -> None:
    facts = Facts(clients=10, cohort=10, rounds=50, steps=10, layers=1)
    for by, spare in (("rounds", PACKED), ("bits", "SCAFFOLD with server momentum")):
        lanes, reasons = methods(facts, 0.1, by)
        left_out = ("FedPVR", "minibatch SGD", spare)
        assert [one.family for one in lanes] == [name for name in FAMILIES if name not in left_out]
        assert len(reasons) == 1
        assert "one layer" in reasons[0]
    sgd = next(one for one in lanes if one.family == "FedSGD")
    assert sgd.lr == 0.3  # near one step as long as FedAvg's five


def test_minibatch_sgd_stands_in_where_a_pass_is_dear() -> None:
    facts = Facts(clients=10, cohort=10, rounds=50, steps=10, layers=1, per_pass=200.0)
    families = [one.family for one in methods(facts, 0.1)[0]]
    assert "minibatch SGD" in families
    assert "FedSGD" not in families


def test_more_steps_come_with_a_smaller_step_size_near_the_curvature() -> None:
    facts = Facts(clients=10, cohort=10, rounds=50, steps=10, layers=1)
    few = Candidate("SCAFFOLD", 5, 0.3)
    assert [(one.steps, one.lr) for one in more_steps(facts, few)] == [(20, 0.1), (20, 0.03)]
    steep, flat = replace(facts, beta=30.0), replace(facts, beta=0.2)
    assert more_steps(steep, few)[0].lr == 0.03  # at most two thirds of 1/β
    assert more_steps(flat, few)[0].lr == 1.0  # at least a quarter of it


def test_the_favourite_is_left_only_for_half_its_cost() -> None:
    facts = Facts(clients=10, cohort=10, rounds=50, steps=10, layers=1)
    assert {favourite(facts, by) for by in ("rounds", "bits", "hours")} == {"SCAFFOLD"}
    rare = replace(facts, cohort=0.5)
    assert favourite(rare, "rounds") == favourite(rare, "hours") == "FedAvg"
    assert favourite(rare, "bits") == "FedAvg in 4 bits"
    first, other = Candidate("SCAFFOLD", 5, 0.3), Candidate("FedSGD", 5, 1.0)
    assert taken({other: 1.9}, first) == first
    assert taken({other: 2.1}, first) == other
    assert taken({}, first) == first


def test_scaffold_goes_on_with_momentum_and_with_half_the_step_where_clients_are_sampled() -> None:
    everyone = Facts(clients=10, cohort=10, rounds=50, steps=10, layers=1, beta=1.0)
    some = replace(everyone, cohort=5)
    one = Candidate("SCAFFOLD", 5, 0.3)
    assert going_on(one, everyone, "bits") == Candidate(PACKED, 5, 0.3)
    with_momentum = going_on(one, some, "hours")
    assert with_momentum == Candidate("SCAFFOLD with server momentum", 5, 0.1)
    high = replace(with_momentum, lr=10.0)
    assert more_steps(some, high)[0].lr == 0.3  # a third of 1/β
    assert more_steps(everyone, high)[0].lr == 1.0  # two thirds
    other = Candidate("FedAvg", 5, 0.3)
    assert going_on(other, some, "rounds") == other


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_is_what_was_raced(family: str, tmp_path: Path) -> None:
    from fairlead.cli.build import build_methods
    from fairlead.cli.settings import DEFAULTS
    from fairlead.describe import described

    one = Candidate(family, 5, 0.3)
    written = one.written
    s = {**DEFAULTS, **written}
    (built,) = build_methods([s["method"]], s, s["lr"]).values()
    assert described(built) == described(one.method)


# -- the race -------------------------------------------------------------------------------------


def test_going_on_gives_what_one_run_would_have_given() -> None:
    race = _race()
    lanes = [Candidate("FedAvg", 3, 0.3), Candidate("SCAFFOLD", 3, 0.3)]
    race.advance(lanes, 2)
    race.advance(lanes, 5)
    for one in lanes:
        whole = fl.train(race.task, one.method, rounds=5, steps=3, **SETTINGS)
        assert np.allclose(race.runs[one, 0].history["loss"], whole.history["loss"], rtol=1e-5)
        assert race.runs[one, 0].counters.gradients == whole.counters.gradients
    assert race.spent == sum(race.runs[one, 0].counters.gradients for one in lanes)


def test_prices_are_what_rounds_cost() -> None:
    race = _race()
    lanes = [Candidate("FedAvg", 4, 0.1), Candidate("FedSGD", 4, 0.1)]
    expected = [race.price(one) for one in lanes]
    race.advance(lanes, 1)
    for one, price in zip(lanes, expected, strict=True):
        assert race.runs[one, 0].counters.gradients == pytest.approx(price, rel=0.05)


def test_halving_stays_within_its_share_and_keeps_the_best() -> None:
    race = _race(budget=2e4)
    rates = (3.0, 1.0, 0.3, 0.003)
    lanes = [Candidate("FedAvg", 4, lr) for lr in rates]
    found = race.halve(lanes, 0.8, "step sizes")
    assert race.spent <= 0.8 * 2e4 * 1.05  # prices are means over clients
    assert set(found) == set(lanes)
    assert race.done(found[0]) > race.done(found[-1])
    assert found[-1].lr in (3.0, 0.003)  # the ends of the ladder
    whole = {one: race.value(one, race.done(found[-1])) for one in found}
    assert min(whole, key=lambda one: whole[one]) in found[:2]


def test_halving_leaves_out_the_last_where_the_first_round_is_too_dear() -> None:
    race = _race()
    lanes = [Candidate("FedAvg", 4, lr) for lr in (1.0, 0.3, 0.1, 0.03)]
    race.budget = 2.5 * race.price(lanes[0])
    race.halve(lanes, 1.0, "methods", keep=1)
    assert [race.done(one) > 0 for one in lanes] == [True, True, False, False]


def test_a_lost_configuration_comes_last_and_is_not_continued() -> None:
    task = fl.problems.random_quadratics(clients=4, dim=3, mu=0.5, beta=1.0)
    race = Race(task, {}, 1e9, "loss")
    good, bad = Candidate("FedAvg", 5, 0.3), Candidate("FedAvg", 5, 1e8)
    race.advance([bad, good], 60)
    assert race.is_lost(bad)
    assert race.ranked([bad, good]) == [good, bad]
    race.advance([bad, good], 61)
    assert race.done(good) == 61
    assert race.done(bad) < 60
    assert race.saving(good, bad) == 100.0
    assert race.saving(bad, good) == 0.01


def test_what_diverges_is_never_recommended(monkeypatch) -> None:
    from fairlead.study.diagnose import heats

    def too_large(facts: Facts, best: Candidate) -> list[Candidate]:
        return [replace(best, steps=facts.many, lr=lr) for lr in (1e9, 1e8)]

    monkeypatch.setattr(heats, "more_steps", too_large)
    task = fl.problems.random_quadratics(clients=4, dim=3, mu=0.5, beta=1.0)
    found = fl.diagnose(task, rounds=4000, steps=10)
    lost = [one for one in found.order if found.race.is_lost(one)]
    assert {one.lr for one in lost} >= {1e9}
    assert not found.race.is_lost(found.best)
    assert found.order[-len(lost) :] == lost


def test_a_saving_is_the_ratio_of_rounds_to_the_same_level() -> None:
    race = _race()
    slow, fast = Candidate("FedAvg", 4, 0.05), Candidate("FedAvg", 4, 0.5)
    race.advance([slow, fast], 12)
    level = float(race.smoothed(slow)[-1])
    assert level == pytest.approx(race.curve(slow)[7:13].mean())  # rounds 7 to 12
    first = int(np.flatnonzero(race.smoothed(fast) <= level)[0])
    assert 12 / first <= race.saving(fast, slow) <= 12 / (first - 1) if first > 1 else True
    assert race.saving(slow, fast) == pytest.approx(1 / race.saving(fast, slow))


def test_bits_favour_compression_where_rounds_do_not() -> None:
    plain, packed = Candidate("FedAvg", 4, 0.3), Candidate("FedAvg in 4 bits", 4, 0.3)
    by_rounds, by_bits = _race(), _race(by="bits")
    by_rounds.advance([plain, packed], 6)
    by_bits.runs = by_rounds.runs
    assert by_bits.saving(packed, plain) > by_rounds.saving(packed, plain) * 1.5


def test_runs_are_resumed_together_in_memory() -> None:
    task = _digits()
    work = [(fl.Scaffold(lr=lr), seed) for lr in (0.3, 0.1) for seed in (0, 1)]
    short = fl.train_many(task, work[:3], rounds=2, steps=3, **SETTINGS)
    whole = fl.train_many(task, work, rounds=4, steps=3, resume=[*short, None], **SETTINGS)
    for (method, seed), run in zip(work, whole, strict=True):
        alone = fl.train(task, method, rounds=4, steps=3, seed=seed, **SETTINGS)
        assert np.allclose(run.history["loss"], alone.history["loss"], rtol=1e-5)
        assert run.ledger.up == alone.ledger.up
    with pytest.raises(fl.FairleadError, match="2 runs to resume for 4 runs"):
        fl.train_many(task, work, rounds=4, steps=3, resume=short[:2], **SETTINGS)


# -- forecasts and links --------------------------------------------------------------------------


def test_a_forecast_of_a_power_law_is_right() -> None:
    rounds = np.arange(1, 65)
    curve = 3.0 * np.append(1.0, rounds**-0.5)
    found = rounds_to([curve], 3.0 / 20.0, "lower", 1e6)  # reached in round 400
    assert found.value == pytest.approx(400, rel=0.15)
    assert 400 in found


def test_a_curve_that_has_stopped_does_not_reach_its_target() -> None:
    curve = 0.5 + np.power(0.5, np.arange(40.0))
    found = rounds_to([curve], 0.4, "lower", 1e4)
    assert math.isinf(found.high)


def test_a_seed_that_has_only_begun_does_not_spoil_the_forecast() -> None:
    curve = np.exp(-0.1 * np.arange(33.0))
    alone = rounds_to([curve], math.exp(-8), "lower", 1e4)
    assert rounds_to([curve, curve[:2]], math.exp(-8), "lower", 1e4) == alone


def test_accuracy_is_read_as_error() -> None:
    curve = 1 - 0.9 * np.exp(-0.05 * np.arange(41))
    found = rounds_to([curve], 1 - 0.9 * math.exp(-0.05 * 75), "higher", 1e4)
    assert 75 in found
    assert found.value == pytest.approx(75, rel=0.1)


def test_hours_add_latency_bits_and_steps() -> None:
    link = Link.parse("8Mbit/2Mbit/100ms/0.5s")
    task = _digits()
    run = fl.train(task, fl.Scaffold(lr=0.1), rounds=3, steps=4, **SETTINGS)
    up = run.ledger.up / 3 / 6 / 2e6
    down = run.ledger.down / 3 / 6 / 8e6
    by_hand = 3 * (0.1 + up + down) + 3 * 4 * 0.5
    assert link.seconds(run.ledger, run.counters.steps, step=99.0) == pytest.approx(by_hand)
    assert link.seconds(Ledger(), 0, 1.0) == 0.0


@pytest.mark.parametrize(
    "text", ["10Mbit/1Mbit", "10/1/50ms", "10Mbit/0Mbit/1ms", "fast", "1Mbit/1Mbit/5Mbit"]
)
def test_a_link_that_cannot_be_read_is_explained(text: str) -> None:
    with pytest.raises(fl.FairleadError, match=r"10Mbit/1Mbit/50ms|must be positive"):
        Link.parse(text)


def test_pooled_data_are_those_of_all_clients() -> None:
    task = _digits()
    one = pooled(task)
    assert one.clients == 1
    assert one.sizes.tolist() == [task.sizes.sum()]
    x = task.start()[0] + 0.1
    a, b = task.evaluate(x, weighting="size"), one.evaluate(x)
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    assert a["accuracy"] == b["accuracy"]
    assert task.clients == 6


# -- the whole ------------------------------------------------------------------------------------


def test_a_diagnosis_answers_nine_questions_within_its_budget(tmp_path: Path) -> None:
    said: list[str] = []
    found = fl.diagnose(
        _digits(), rounds=150, steps=8, target={"accuracy": 0.93}, link="10Mbit/1Mbit/50ms", by="rounds",
        say=said.append, **SETTINGS,
    )  # fmt: skip
    assert len(found.answers) == 9
    assert "planned: 150 rounds of 8 local steps" in said[0]
    assert "10% of that" in said[0]
    assert found.race.spent <= 1.1 * 0.1 * found.planned
    assert found.order[0] == found.best
    assert not found.race.is_lost(found.best)
    rounds = found.answers[5]
    assert rounds.number is not None
    assert rounds.number.low >= 1
    assert {"rounds", "Mbit up", "Mbit", "gradients", "hours"} <= set(rounds.rows[0])
    families = {one.family for one in found.order}
    assert {
        "FedSGD",
        "FedAvg",
        "FedAvg with local momentum",
        "FedAvg with server momentum",
    } <= families
    names = found.write(tmp_path / "advice")
    assert names == ["advice.toml", "diagnosis.txt", "diagnosis.html"]
    page = (tmp_path / "advice" / "diagnosis.html").read_text()
    assert all(answer.question in page for answer in found.answers)
    assert page.count("<svg") >= 2
    assert "<script" not in page
    bits = sum(entry.bits for entry in found.race.bill)
    counted = sum(run.ledger.up + run.ledger.down for run in found.race.runs.values())
    assert bits >= counted > 0


def test_the_same_diagnosis_twice_is_the_same() -> None:
    task = _digits()
    one, two = (fl.diagnose(task, rounds=100, steps=6, **SETTINGS) for _ in range(2))
    assert one.order == two.order
    assert [a.words for a in one.answers] == [a.words for a in two.answers]


@pytest.mark.slow
def test_layers_are_named_for_a_network() -> None:
    found = fl.diagnose(_digits(model="mlp"), rounds=120, steps=8, **SETTINGS)
    layers = found.answers[7]
    assert {row["layer"] for row in layers.rows} == set(found.task.layers)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"by": "hours"}, "hours depend on the link"),
        ({"by": "money"}, "there is no thing to save 'money'"),
        ({"budget": 0.0}, "the budget is 0"),
        ({"callbacks": [print]}, "callbacks is for single runs"),
        ({"target": {"acuracy": 0.9}}, "did you mean 'accuracy'"),
    ],
)
def test_errors_say_what_to_do(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(fl.FairleadError, match=words):
        fl.diagnose(_digits(), rounds=10, **settings)


def test_saddle_problems_are_refused() -> None:
    with pytest.raises(fl.FairleadError, match="minimization"):
        fl.diagnose(fl.problems.quadratic_game(), rounds=10)


def test_the_command_prints_the_answers_and_run_takes_its_advice(tmp_path: Path) -> None:
    folder = tmp_path / "advice"
    result = CliRunner().invoke(
        app,
        ["diagnose", "--rounds", "100", "--steps", "6", "--clients", "6", "--budget", "0.15", "--out", str(folder)],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "1. Do local steps pay" in result.output
    assert "9. What if only half" in result.output
    assert "the diagnosis cost" in result.output
    again = CliRunner().invoke(
        app,
        [
            "run",
            "--config",
            str(folder / "advice.toml"),
            "--rounds",
            "2",
            "--out",
            str(tmp_path / "run"),
        ],
    )
    assert again.exit_code == 0, again.output


def test_ranges_are_said_briefly() -> None:
    assert str(Range(math.inf, 40, math.inf)) == "> 40"
    assert 3 in Range(2, 1, 3)
    assert 4 not in Range(2, 1, 3)
