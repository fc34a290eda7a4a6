"""FedGLOMO's recipes: small runs on made-up images, verdicts from made-up curves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import fairlead as fl
from fairlead.data.sources import Dataset
from fairlead.study.reproduce import (
    Case,
    Form,
    Outcome,
    Recipe,
    Result,
    Results,
    carry_out,
    recipes,
)
from fairlead.study.reproduce.experiments import glomo_alpha, glomo_cost, glomo_figures
from fairlead.study.reproduce.experiments.glomo_figures import (
    FMNIST,
    GRID,
    HET,
    HOM,
    METHODS,
    GlomoFig1,
    GlomoFig5,
    GlomoFig7,
    GlomoFigure,
    Setting,
)
from fairlead.study.reproduce.experiments.glomo_verdicts import (
    attained,
    best,
    ends,
    rows,
    smoother,
)

FIGURES = [made for made in recipes().values() if isinstance(made, GlomoFigure)]


@pytest.fixture(autouse=True)
def made_up_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of 4 × 4 pixels whose brightness depends on the class, in place of every data set."""

    def load(name: str, data: object = None) -> Dataset:
        made = torch.Generator().manual_seed(0)
        y = torch.arange(600) % 10
        noise = torch.randint(0, 90, (600, 1, 4, 4), generator=made)
        x = (noise + 16 * y.reshape(-1, 1, 1, 1)).to(torch.uint8)
        return Dataset(name, x[:500], y[:500], x[500:], y[500:])

    monkeypatch.setattr("fairlead.data.sources.load", load)


def shortened(made: GlomoFigure) -> GlomoFigure:
    """The recipe with few and short rounds; one setting where there is no quick form."""
    most = 2 if made.minutes[0] is not None else 1

    class Short(type(made)):
        settings = tuple(
            replace(s, rounds=10, steps=max(2, s.steps // 5), cohort=max(2, s.cohort // 5))
            for s in made.settings[:most]
        )

        def cases(self, form: Form, done: Results) -> Iterable[Case]:
            for case in super().cases(form, done):
                assert isinstance(case.task, partial)
                task = partial(glomo_figures.images, *case.task.args[:2], 8, None)
                yield replace(case, task=task, settings={**case.settings, "batch_size": 4})

    return Short()


@pytest.mark.parametrize("made", FIGURES, ids=lambda made: made.name)
def test_the_quick_form_of_every_figure_concludes(made: GlomoFigure, tmp_path: Path) -> None:
    short, form = shortened(made), Form(quick=made.minutes[0] is not None, seeds=1)
    done = carry_out(short, form, tmp_path, progress=False)
    assert done.missing == 0
    outcome = short.conclude(form, done.results)
    planned = short.planned(form)
    assert planned
    assert {row["setting"] for row in outcome.rows} == {s.name for s in planned}
    assert len(outcome.rows) == len(planned) * len(short.methods)
    assert len(outcome.claims) >= 5 * len(planned) - (short.item == "Figure 1")
    assert outcome.draw is not None
    outcome.draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert short.conclude(form, Results([])).claims == []


def test_methods_have_equal_nominal_bits_a_round() -> None:
    task = glomo_figures.images(FMNIST, HET, 5, None)
    for method in ("FedPAQ-m", "FedGLOMO", "FedLOMO", "FedCOMGATE", "FedPAQ-scm"):
        make = next(iter(METHODS[method].values()))
        run = fl.train(
            task, make(Setting(FMNIST, bits=2), 0.01), rounds=2, steps=2, cohort=5, batch_size=4
        )
        last = run.history.rows[-1]
        extra = 32 * 5 * 2 if method == "FedCOMGATE" else 0  # the sum of step sizes
        assert last["nominal_up"] - extra == 4 * task.dim * 5 * 2


def test_settings_are_the_papers() -> None:
    first = GlomoFig1.settings
    assert [(s.bits, s.split, s.steps, s.rounds, s.cohort) for s in first] == [
        (2, HET, 10, 300, 25), (2, HOM, 10, 300, 25), (4, HET, 10, 300, 25), (4, HOM, 10, 300, 25),
    ]  # fmt: skip
    case = next(iter(GlomoFig1().cases(Form(), Results([]))))
    assert case.settings["batch_size"] == 32
    assert case.task is not None
    assert case.task(device="cpu").l2 == 1e-4
    other = next(iter(GlomoFig1().cases(Form(readings={"batch": "64"}), Results([]))))
    assert other.settings["batch_size"] == 64
    assert all(s.steps * s.rounds == 3000 for s in GlomoFig5.settings)
    steps = {
        c.labels["lr"] for c in GlomoFig5().cases(Form(), Results([])) if c.settings["steps"] == 5
    }
    assert steps == {2 * lr for lr in GRID}
    glomo = {s.split: METHODS["FedGLOMO"][""](s, 0.1) for s in first}
    assert {split: getattr(method, "damping", None) for split, method in glomo.items()} == {
        HET: 0.8,
        HOM: 1.0,
    }


def fake(
    method: str,
    errors: list[float],
    lr: float = 0.01,
    seed: int = 0,
    cost: float = 1.0,
    variant: str = "",
) -> Result:
    rounds = [float(k) for k in range(len(errors))]
    curve = {
        axis: [cost * k for k in rounds] for axis in ("nominal_up", "bits_up", "bits", "gradients")
    }
    curve |= {"round": rounds, "accuracy": [1 - e for e in errors], "loss": errors}
    labels = {
        "setting": GlomoFig1.settings[0].name,
        "method": method,
        "variant": variant,
        "lr": lr,
        "seed": seed,
    }
    return Result(
        labels,
        f"{method}{lr}{seed}{variant}",
        curve=curve,
        end={"round": rounds[-1], "nominal_up": 9.0},
    )


SLOW = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4]
FAST = [0.9, 0.6, 0.4, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]


def test_a_share_of_the_costs_is_judged_on_every_axis() -> None:
    base, fast = best(Results([fake("FedPAQ-m", SLOW)])), best(Results([fake("FedGLOMO", FAST)]))
    assert [c.verdict for c in attained("here", "FedPAQ-m", base, fast, 1 / 3)] == ["holds"] * 4
    assert [c.verdict for c in attained("here", "FedPAQ-m", base, fast, 0.15)] == ["in part"] * 4
    dear = best(Results([fake("FedGLOMO", FAST, cost=6.0)]))
    assert [c.verdict for c in attained("here", "FedPAQ-m", base, dear, 0.5)] == [
        "does not hold"
    ] * 4
    never = best(Results([fake("FedGLOMO", [0.9] * 10)]))
    found = attained("here", "FedPAQ-m", base, never, 0.5)
    assert {c.verdict for c in found} == {"does not hold"}
    assert "does not reach" in found[0].evidence
    assert "22%" in attained("here", "FedPAQ-m", base, fast, 0.5)[0].evidence  # round 2 of 9


def test_a_winner_at_the_edge_voids_verdicts_and_widens_the_grid() -> None:
    tried = Results([fake("FedGLOMO", [e + abs(lr - 0.1) for e in FAST], lr) for lr in GRID])
    edge, base = best(tried), best(Results([fake("FedPAQ-m", SLOW)]))
    assert (edge.lr, edge.edge) == (0.1, True)
    claims = attained("here", "FedPAQ-m", base, edge, 0.5)
    claims += [smoother("here", base, edge), ends("here", "", [("a", "b")], {"a": edge, "b": base})]
    assert {c.verdict for c in claims} == {"open"}
    setting = GlomoFig1.settings[0]
    grid = glomo_figures._grid
    assert grid(Form(), setting, Results([])) == list(GRID)
    assert grid(Form(), setting, tried) == [*GRID, 0.3]
    worse = Results([*tried, fake("FedGLOMO", [1.0] * 10, 0.3)])
    assert grid(Form(), setting, worse) == [*GRID, 0.3]
    assert not best(worse).edge
    better = Results([*tried, fake("FedGLOMO", [0.01] * 10, 0.3)])
    assert grid(Form(), setting, better) == [*GRID, 0.3, 1.0]
    low = Results([fake("FedGLOMO", [e + lr for e in FAST], lr) for lr in GRID])
    assert grid(Form(), setting, low) == [3e-4, *GRID]


def test_other_seeds_get_the_winner_alone() -> None:
    done = Results([fake("FedPAQ-m", [e + abs(lr - 0.01) for e in SLOW], lr) for lr in GRID])
    asked = [c for c in GlomoFig1().cases(Form(), done) if c.labels["seed"] != 0]
    assert [(c.labels["method"], c.labels["lr"], c.labels["seed"]) for c in asked] == [
        ("FedPAQ-m", 0.01, 1), ("FedPAQ-m", 0.01, 2),
    ]  # fmt: skip
    partly = GlomoFig1().conclude(Form(), done)
    assert [row["method"] for row in partly.rows] == ["FedPAQ-m"]
    assert partly.claims == []  # until all methods are tuned


def test_the_best_variant_counts_and_a_diverged_run_does_not() -> None:
    lost = replace(fake("MimeSGDm", [0.1] * 10, variant="β=0.99"), stopped="diverged")
    entry = best(
        Results(
            [lost, fake("MimeSGDm", FAST, variant="β=0.9"), fake("MimeSGDm", SLOW, variant="β=0")]
        )
    )
    assert entry.variant == "β=0.9"
    assert entry.final("error") == pytest.approx(0.2)


def test_a_step_size_with_which_another_seed_diverges_is_left_out() -> None:
    grid = [fake("FedPAQ-m", [e + abs(lr - 0.01) for e in SLOW], lr) for lr in GRID]
    lost = replace(fake("FedPAQ-m", SLOW, 0.01, seed=1), stopped="diverged")
    some = Results([*grid, lost, fake("FedPAQ-m", SLOW, 0.01, seed=2)])
    assert best(some).lr == 0.005  # second of seed 0
    asked = [c.labels for c in GlomoFig1().cases(Form(), some) if c.labels["seed"] != 0]
    assert [(c["lr"], c["seed"]) for c in asked] == [(0.01, 1), (0.01, 2), (0.005, 1), (0.005, 2)]
    more = Results([*some, *(fake("FedPAQ-m", SLOW, 0.005, seed=k) for k in (1, 2))])
    assert [r.labels["seed"] for r in best(more).results] == [0, 1, 2]
    again = [c.labels for c in GlomoFig1().cases(Form(), more) if c.labels["seed"] != 0]
    assert again == asked


def test_a_method_that_diverges_with_every_step_size_decides_nothing() -> None:
    lost = [replace(fake("FedCOMGATE", SLOW[:3], lr), stopped="diverged") for lr in GRID]
    none, glomo = best(Results(lost)), best(Results([fake("FedGLOMO", FAST)]))
    assert (none.lr, none.diverged, glomo.diverged) == (min(GRID), True, False)
    claims = attained("here", "FedCOMGATE", none, glomo, 1.0)
    assert {c.verdict for c in claims} == {"open"}
    assert all("FedCOMGATE diverges with every step size" in str(c) for c in claims)
    shown = rows("here", {"FedCOMGATE": none, "FedGLOMO": glomo}, "FedCOMGATE", 8)
    assert [row["test error, %"] for row in shown] == ["diverged", "20.0"]
    assert [row["reached in rounds"] for row in shown] == ["not reached"] * 2
    asked = [c for c in GlomoFig7().cases(Form(), Results(lost)) if c.labels["seed"] != 0]
    assert asked == []


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("method", ["FedCOMGATE", "FedGLOMO", "FedPAQ-m"])
def test_a_figure_concludes_where_a_method_always_diverges(
    method: str, rows: int, tmp_path: Path
) -> None:
    made, found = GlomoFig7(), Results([])
    while True:
        cases = list(made.cases(Form(seeds=1), found))
        if len(cases) == len(found):
            break
        results = []
        for case in cases:
            mine = case.labels["method"] == method
            one = fake(method, SLOW[:rows] if mine else SLOW)
            stopped = "diverged" if mine else "rounds"
            results.append(replace(one, labels=case.labels, digest=case.digest, stopped=stopped))
        found = Results(results)
    outcome = made.conclude(Form(seeds=1), found)
    assert {row["test error, %"] for row in outcome.rows if method in row["method"]} == {"diverged"}
    assert outcome.draw is not None
    outcome.draw(tmp_path / "figure.png")


def test_roughness_sees_jumps_and_not_a_slope() -> None:
    slope, jumps = [1 - 0.02 * k for k in range(20)], [0.5 + 0.1 * (k % 2) for k in range(20)]
    plain, rough = (
        best(Results([fake(m, c)])) for m, c in (("FedGLOMO", slope), ("FedPAQ-m", jumps))
    )
    assert plain.roughness == pytest.approx(0.0, abs=1e-12)
    assert rough.roughness == pytest.approx(0.1, rel=0.02)
    assert smoother("here", rough, plain).verdict == "holds"


@pytest.mark.parametrize("made", [glomo_alpha.GlomoFig3(), glomo_alpha.GlomoFig10()])
def test_alpha_is_followed_along_a_run(
    made: glomo_alpha.GlomoAlpha, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(made), "rounds", 100)
    monkeypatch.setattr(glomo_alpha, "Setting", partial(Setting, steps=3, cohort=5))
    form = Form(quick=True)
    done = carry_out(made, form, tmp_path, progress=False)
    outcome = made.conclude(form, done.results)
    assert [row["clients"] for row in outcome.rows] == [HET, HOM]
    for result in done.results:
        share = result.curve["alpha/share"]
        assert result.curve["round"] == [0, 10, 20]
        assert all(0 < v <= 1 for v in share)  # by Cauchy-Schwarz
    assert len(outcome.claims) == 3
    assert outcome.draw is not None
    outcome.draw(tmp_path / "alpha.png")


def test_the_quantization_error_is_what_qsgd_does() -> None:
    torch.manual_seed(0)
    v = torch.randn(400, dtype=torch.float64)
    levels = 20
    exact = glomo_cost.quantization_error(v, levels)
    u = torch.rand(20_000, 400, dtype=torch.float64)
    norm = torch.linalg.vector_norm(v)
    drawn = (v * levels / norm + u).floor() * norm / levels
    assert exact == pytest.approx(float(((drawn - v) ** 2).sum(1).mean() / norm**2), rel=0.01)
    assert exact <= 1


def test_the_costs_of_compression_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = glomo_cost.GlomoCost()
    plain = made.places

    def short(form: Form) -> dict:
        found = plain(form)
        quadratic = found[glomo_cost.QUADRATIC]
        task, _, first, settings = found[glomo_cost.PICTURES]
        dim = task(device="cpu").dim
        local = {**settings, "rounds": 4, "batch_size": 4}
        return {
            glomo_cost.QUADRATIC: (*quadratic[:3], {"rounds": 4, "steps": 2, "cohort": 5}),
            glomo_cost.PICTURES: (task, dim, first, local),
        }

    monkeypatch.setattr(made, "places", short)
    form = Form(quick=True)
    done = carry_out(made, form, tmp_path, progress=False)
    outcome = made.conclude(form, done.results)
    assert [row["compression"] for row in outcome.rows] == ["none", "Elias"] * 2
    assert math.isfinite(float(outcome.rows[0]["rounds"]))
    held = {c.text: c.verdict for c in outcome.claims}
    assert held["[quadratic] q ≤ 1"] == held["[Fashion-MNIST] q ≤ 1"] == "holds"
    assert outcome.draw is not None
    outcome.draw(tmp_path / "cost.png")


def test_recipes_are_listed() -> None:
    names = {f"glomo-fig{k}" for k in range(1, 11)} | {"glomo-cost"}
    assert names <= set(recipes())
    assert all(isinstance(recipes()[n], Recipe) for n in names)
    assert isinstance(FIGURES[0].conclude(Form(), Results([])), Outcome)
