"""The tables on EMNIST, FEMNIST and all methods, on small synthetic data; and what tables share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fairlead as fl
from fairlead.describe import described
from fairlead.study.reproduce import Form, Recipe, Result, Results, Tuned, carry_out, recipe
from fairlead.study.reproduce.experiments import all_methods, characters
from fairlead.study.reproduce.experiments.all_methods import NAMES, SETTINGS, method
from fairlead.study.reproduce.experiments.femnist_writers import writers
from fairlead.study.reproduce.tables import (
    GRID,
    Contest,
    interpolated,
    seeds_to_add,
    settled,
    step_sizes,
)  # fmt: skip


def result(lr: float, rounds: float = math.inf, best: float = 0.5, seed: int = 0) -> Result:
    reach = {"accuracy": {"0.5": [rounds] * 6}} if rounds < math.inf else {}
    return Result({"lr": lr, "seed": seed}, f"{lr}-{seed}", best={"accuracy": best}, reach=reach)


def test_the_grid_grows_until_the_best_step_size_is_inside() -> None:
    def asked(*some: Result) -> list[float]:
        return step_sizes(Results(some), "accuracy", 0.5, (1.0, 0.3, 0.1), GRID)

    first = [result(1.0, 10), result(0.3, 20), result(0.1, 30)]
    assert asked() == asked(*first[:2]) == [1.0, 0.3, 0.1]
    assert asked(*first) == [1.0, 0.3, 0.1, 3.0]
    assert asked(*first, result(3.0, 12)) == [1.0, 0.3, 0.1, 3.0]
    assert asked(*first, result(3.0, 8), result(10.0, 5)) == [1.0, 0.3, 0.1, 3.0, 10.0]
    small = [result(1.0, best=0.1), result(0.3, best=0.2), result(0.1, best=0.3)]
    assert asked(*small)[-1] == 0.03


def test_further_seeds_come_with_the_best_step_size_of_the_first() -> None:
    some = [result(1.0, 30), result(0.3, 10), result(0.1, 20)]
    lrs = [1.0, 0.3, 0.1]
    assert seeds_to_add(Results(some[:2]), lrs, "accuracy", 0.5, 3) == []
    assert seeds_to_add(Results(some), lrs, "accuracy", 0.5, 3) == [(0.3, 1), (0.3, 2)]
    # a second seed that is slow does not change the choice
    entry = settled(Results([*some, result(0.3, 90, seed=1)]), "accuracy", 0.5)
    assert (entry.lr, entry.edge, len(entry.results)) == (0.3, False, 2)
    assert settled(Results(some[1:2]), "accuracy", 0.5).edge  # nothing beside it was tried


def test_levels_between_stored_points_are_interpolated() -> None:
    curve = {"round": [0.0, 10.0, 20.0, 40.0], "accuracy": [0.1, 0.5, 0.3, 0.9]}
    found = Result({}, "", curve=curve)
    assert interpolated(found, "accuracy", 0.3) == pytest.approx(5)
    assert interpolated(found, "accuracy", 0.7) == pytest.approx(30)
    assert interpolated(found, "accuracy", 0.05) == 0
    assert interpolated(found, "accuracy", 0.95) == math.inf


def test_an_edge_or_two_misses_decide_nothing() -> None:
    def entry(rounds: float, edge: bool = False) -> Tuned:
        return Tuned(0.3, Results([result(0.3, rounds)]), edge)

    found = {
        "a": entry(5),
        "b": entry(9),
        "c": entry(math.inf),
        "d": entry(math.inf),
        "e": entry(4, True),
    }
    contest = Contest(found, lambda some: some[0].cost("accuracy", 0.5))
    assert contest.judged("a first", [("a", "b"), ("a", "c")], "").verdict == "holds"
    assert contest.judged("b first", [("b", "a")], "").verdict == "does not hold"
    assert contest.judged("c first", [("c", "d")], "").verdict == "open"
    assert contest.judged("e first", [("e", "a"), ("a", "b")], "").verdict == "open"


@pytest.fixture
def femnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters with a dark bar per class on white paper, 14 classes of which ten are digits."""
    rng = np.random.default_rng(0)

    def images(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(n) % 14
        x = rng.integers(200, 256, (n, 28, 28))
        for k, label in enumerate(y):
            x[k, 2 * label : 2 * label + 2] = 0
        return x.astype(np.uint8), y.astype(np.uint8)

    parts = {name: images(n) for name, n in (("train", 600), ("test", 140), ("extra", 560))}
    arrays: dict[str, Any] = {f"x_{name}": x for name, (x, _) in parts.items()}
    arrays |= {f"y_{name}": y for name, (_, y) in parts.items()}
    arrays |= {f"writer_{name}": np.arange(len(y)) % 6 for name, (_, y) in parts.items()}
    np.savez(tmp_path / "femnist.npz", **arrays)
    monkeypatch.setenv("FAIRLEAD_DATA", str(tmp_path))


def carried_out(
    made: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch, rounds: int = 3
) -> Results:
    """All cases of the quick form with one step size and few rounds."""
    monkeypatch.setattr(characters, "FIRST", (1.0,))
    monkeypatch.setattr(type(made), "rounds", lambda self, form: rounds, raising=False)
    done = carry_out(made, Form(quick=True), folder)
    assert done.missing == 0
    return done.results


@pytest.mark.usefixtures("femnist")
def test_the_stand_in_has_ink_on_black_and_half_digits() -> None:
    whole = characters.characters("femnist_half", quick=False)
    assert whole.x.float().mean() < 60  # white paper became black
    assert abs(float((whole.y < 10).float().mean()) - 0.5) < 0.01
    quarter = characters.characters("femnist_half", quick=True)
    assert (len(quarter.x), quarter.x.shape[-1]) == (len(whole.x) // 4, 14)
    task = characters.across_clients("femnist_half", 0, "softmax", quick=False)
    assert task.clients == 100
    assert characters.across_clients("femnist_half", None, "softmax", quick=False).clients == 1


@pytest.mark.usefixtures("femnist")
def test_scaffolds_tables_run_and_conclude(tmp_path: Path, monkeypatch) -> None:
    for name, rows in (("scaffold-table3", 21), ("scaffold-table4", 12), ("scaffold-table5", 6)):
        made = recipe(name)
        done = carried_out(made, tmp_path / name, monkeypatch)
        outcome = made.conclude(Form(quick=True), done)
        assert len(outcome.rows) == rows
        assert len(outcome.claims) >= 3
        assert outcome.draw is not None
        outcome.draw(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
        assert "centralised softmax regression reaches" in outcome.notes[0]
    sgd = done.where(method="SGD")[0]
    local = done.where(method="FedAvg", similarity=sgd.labels["similarity"])[0]
    assert local.end["gradients"] == pytest.approx(5 * sgd.end["gradients"], rel=0.05)  # 5 epochs


@pytest.mark.usefixtures("femnist")
def test_random_clients_have_the_writers_sizes_and_images() -> None:
    by_writer, dealt = (writers("softmax", split, 4, 100) for split in ("writers", "iid"))
    assert by_writer.clients == dealt.clients == 4
    assert by_writer.sizes.tolist() == dealt.sizes.tolist() == [100] * 4


@pytest.mark.usefixtures("femnist")
def test_femnist_compares_writers_with_a_random_split(tmp_path: Path, monkeypatch) -> None:
    made = recipe("femnist")
    monkeypatch.setattr(type(made), "models", lambda self, form: [("softmax", 3)])
    monkeypatch.setattr(type(made), "rounds", lambda self, form: 6)
    done = carry_out(made, Form(quick=True), tmp_path)
    outcome = made.conclude(Form(quick=True), done.results)
    assert [row["clients"] for row in outcome.rows] == ["random", "by writer"]
    assert float(outcome.rows[0]["target"]) >= 0.2
    assert len(outcome.claims) == 2
    assert outcome.draw is not None
    outcome.draw(tmp_path / "femnist.png")


def test_every_method_can_be_made_by_name() -> None:
    assert {*NAMES, "catalyst"} == {*fl.methods.METHODS, *fl.methods.PRESETS}
    for name in NAMES:
        assert described(method(name, 0.1)) == described(method(name, 0.1))
        assert described(method(name, 0.1)) != described(method(name, 0.2))


def test_all_methods_reports_costs_over_seeds(tmp_path: Path, monkeypatch) -> None:
    setting = SETTINGS["digits"]
    short = setting._replace(goal=0.5, train={**setting.train, "rounds": 6})
    monkeypatch.setitem(SETTINGS, "digits", short)
    monkeypatch.setattr(all_methods, "NAMES", ["fedavg", "fedpaq", "scaffold", "fedavg-m"])
    made = recipe("all-methods")
    monkeypatch.setattr(type(made), "targets", {"accuracy": (0.5,)})
    form = Form(quick=True, seeds=2)
    done = carry_out(made, form, tmp_path, only="data=digits")
    outcome = made.conclude(form, done.results)
    rounds = {row["method"]: row["rounds"] for row in outcome.rows}
    assert sorted(rounds) == ["fedavg", "fedavg-m", "fedpaq", "scaffold"]
    assert all("±" in shown for shown in rounds.values())
    up = {row["method"]: float(row["Mbit up"].split()[0]) for row in outcome.rows}
    assert up["fedpaq"] < up["fedavg"]
    assert any("quantized" in claim.text for claim in outcome.claims)
    assert outcome.draw is not None
    outcome.draw(tmp_path / "all.png")
    sizes = all_methods.digits().sizes
    assert sizes.max() > 3 * sizes.min()  # clients take different numbers of steps
