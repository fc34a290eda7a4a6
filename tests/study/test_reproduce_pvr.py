"""FedPVR's table 3 and figure 5: short forms on synthetic images, and what they conclude."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fairlead.study.reproduce import Form, Outcome, Recipe, Result, Results, carry_out, recipe
from fairlead.study.reproduce.case import Label
from fairlead.study.reproduce.experiments import pvr_figures, pvr_tables
from fairlead.study.reproduce.experiments.pvr_tables import cifar


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise with CIFAR-10's shape, four images of each class for training and one for tests."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, n in (("train", 40), ("test", 10)):
        arrays[f"x_{name}"] = rng.integers(0, 256, (n, 32, 32, 3)).astype(np.uint8)
        arrays[f"y_{name}"] = (np.arange(n) % 10).astype(np.uint8)
    np.savez(tmp_path / "cifar10.npz", **arrays)
    monkeypatch.setenv("FAIRLEAD_DATA", str(tmp_path))


def made_up(made: Recipe, form: Form, accuracy: Mapping[Label, float]) -> Outcome:
    """What a recipe concludes if each method, or start, had this accuracy."""
    found = []
    for case in made.cases(form, Results([])):
        value = accuracy[case.labels.get("method", case.labels.get("start", ""))]
        sent = 2.0 if case.labels.get("method") == "SCAFFOLD" else 1.0
        end = {"accuracy": value, "bits": 640 * sent, "communications": 1.0, "clients": 10.0}
        curve = {"round": [0.0, 1.0], "accuracy": [0.1, value]}
        found.append(
            Result(case.labels, case.digest, end=end, best={"accuracy": value}, curve=curve)
        )
    return made.conclude(form, Results(found))


ACCURACY: dict[Label, float] = {
    "FedAvg": 0.5, "FedProx μ=0.1": 0.5, "FedProx μ=0.5": 0.55, "FedProx μ=1": 0.4, "SCAFFOLD": 0.6,
    "FedPVR": 0.7, "centralised": 0.8,
}  # fmt: skip


@pytest.mark.parametrize("quick", [True, False])
def test_table_3_puts_centralised_training_beside_the_methods(quick: bool, tmp_path: Path) -> None:
    outcome = made_up(recipe("pvr-table3"), Form(quick=quick), ACCURACY)
    alone = [row for row in outcome.rows if row["method"] == "centralised"]
    assert [row["model"] for row in alone] == (["resnet8"] if quick else ["resnet8", "vgg11"])
    assert [row.get("paper") for row in alone] == ([None] if quick else ["81.7", "86.0"])
    assert len(outcome.claims) == 3 * (2 if quick else 4)
    assert all(claim.verdict == "holds" for claim in outcome.claims)
    assert any("quick form" in note for note in outcome.notes) == quick
    assert outcome.draw is not None
    outcome.draw(tmp_path / "table.png")


def test_table_3_judges_by_the_numbers() -> None:
    made, form = recipe("pvr-table3"), Form(quick=True)
    behind = made_up(made, form, {**ACCURACY, "FedPVR": 0.45}).claims
    assert [claim.verdict for claim in behind] == ["does not hold", "does not hold", "holds"] * 2
    chance = made_up(made, form, dict.fromkeys(ACCURACY, 0.1)).claims
    assert [claim.verdict for claim in chance] == ["open", "open", "holds"] * 2


def test_table_3_takes_the_step_size_that_ends_best() -> None:
    labels = {
        "model": "resnet8",
        "alpha": "one client",
        "method": "centralised",
        "momentum": 0.0,
        "seed": 0,
    }
    curve = {"round": [0.0, 1.0], "accuracy": [0.1, 0.3]}
    found = [
        Result({**labels, "lr": lr}, str(lr), end={"accuracy": end}, best={"accuracy": 0.9 - end}, curve=curve)
        for lr, end in ((0.01, 0.3), (0.05, 0.4), (0.1, 0.35))
    ]  # fmt: skip
    rows = recipe("pvr-table3").conclude(Form(quick=True), Results(found)).rows
    assert [(row["step"], row["accuracy, %"]) for row in rows] == [("0.05", "40.0")]


@pytest.mark.parametrize("name", ["pvr-table3", "pvr-fig5", "pvr-figC2"])
def test_all_cases_of_a_short_form_take_the_same_epochs(name: str) -> None:
    cases = list(recipe(name).cases(Form(quick=True), Results([])))
    assert len({str(case.settings) for case in cases}) == 1
    assert not any("engine" in case.settings for case in cases)


def test_figure_5_judges_the_order_of_the_starts() -> None:
    made, form = recipe("pvr-fig5"), Form(quick=True)
    rising: dict[Label, float] = {start: 0.5 + start / 100 for start in (0, 4, 8, 12, 16, 20)}

    def verdicts(accuracy: Mapping[Label, float]) -> list[str]:
        return [claim.verdict for claim in made_up(made, form, accuracy).claims]

    assert verdicts({**rising, "none": 0.3}) == ["holds", "holds"] * 2
    assert verdicts({**rising, "none": 0.9}) == ["holds", "does not hold"] * 2
    falling = {start: 1 - value for start, value in rising.items()}
    assert verdicts({**falling, "none": 0.1}) == ["does not hold", "holds"] * 2
    assert verdicts(dict.fromkeys([*rising, "none"], 0.1)) == ["open", "open"] * 2


def test_a_start_that_diverges_is_the_slowest() -> None:
    made, form = recipe("pvr-fig5"), Form(quick=True)
    found = [
        Result(
            case.labels, case.digest, "diverged" if case.labels["start"] == 20 else "rounds",
            best={"accuracy": 0.5}, curve={"round": [0.0, 1.0], "accuracy": [0.1, 0.5]},
        )
        for case in made.cases(form, Results([])) if case.labels["start"] in (20, "none")
    ]  # fmt: skip
    outcome = made.conclude(form, Results(found))
    assert [row["mean accuracy"] for row in outcome.rows] == ["diverged", "30.0 %"] * 2
    worst = [claim.verdict for claim in outcome.claims if "worst" in claim.text]
    assert worst == ["does not hold"] * 2


@pytest.mark.usefixtures("images")
def test_a_narrow_vgg11_has_all_its_layers() -> None:
    whole, quarter = (cifar(model, 0.5, "one", 40) for model in ("vgg11", "vgg11/4"))
    assert list(whole.layers) == list(quarter.layers)
    assert quarter.dim == 611_434 < whole.dim / 15


@pytest.mark.usefixtures("images")
def test_table_3_and_figure_5_run_in_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief = {"rounds": 1, "epochs": 1, "batch_size": 4, "engine": "loop"}
    table, figure, form = recipe("pvr-table3"), recipe("pvr-fig5"), Form(quick=True)
    monkeypatch.setattr(pvr_tables.PvrTable, "settings", lambda self, form, batch: brief)
    monkeypatch.setattr(pvr_figures.PvrFig5, "quick", ("vgg11/4", brief))
    for part in ("alpha=0.5", "one_client,method=centralised,momentum=0.0,lr=0.1"):
        done = carry_out(table, form, tmp_path / "table", only=part)
    outcome = table.conclude(form, done.results)
    sent = {
        row["method"]: row["million parameters per client and round"] for row in outcome.rows[:-1]
    }
    assert sent == {
        "FedAvg": "0.156", "FedProx μ=0.1": "0.156", "SCAFFOLD": "0.312", "FedPVR": "0.157",
    }  # fmt: skip
    assert [claim.verdict for claim in outcome.claims if "sends" in claim.text] == ["holds"]
    alone = done.results.where(method="centralised")[0]
    assert alone.end["gradients"] == done.results[0].end["gradients"]
    done = carry_out(figure, form, tmp_path / "figure", only="start=16")
    rows = figure.conclude(form, done.results).rows
    assert [(row["momentum"], row["from tensor"]) for row in rows] == [("0", "16"), ("0.9", "16")]
