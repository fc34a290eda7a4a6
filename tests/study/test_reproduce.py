"""Recipes: what is missing is done, what is done stays, and conclusions come from what is stored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

import fairlead as fl
from fairlead.study.reproduce import (
    Case,
    Form,
    Outcome,
    Recipe,
    Result,
    Results,
    carry_out,
    judged,
    recipes,
    runner,
    tuned,
)  # fmt: skip
from fairlead.study.reproduce.claims import Work
from fairlead.study.reproduce.page import concluded, stored_form, verdicts, write_page
from fairlead.study.reproduce.papers import ITEMS
from fairlead.study.reproduce.runner import CASES, _together, stored


class Tiny(Recipe):
    """Two methods on a pair of quadratics; the winner's step size once more with another seed."""

    name, title, paper, item = "tiny", "Tiny", "none", "none"
    targets: ClassVar = {"gap": (1e-3,)}
    columns = ("gap",)
    readings: ClassVar = {"start": ("1", "2")}
    grid = (0.1, 0.3)

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        start = float(self.reading(form, "start"))
        task = partial(fl.problems.theorem2, gradient=1.0, start=start)
        settings = {"rounds": 30, "steps": 2}
        for lr in self.grid:
            for name, kind in (("FedAvg", fl.FedAvg), ("SCAFFOLD", fl.Scaffold)):
                yield Case({"method": name, "lr": lr, "seed": 0}, task, kind(lr), settings)
        first = done.where(method="SCAFFOLD", seed=0)
        if len(first) == len(self.grid):
            lr = tuned(first, "gap", 1e-3, higher=False).lr
            yield Case({"method": "SCAFFOLD", "lr": lr, "seed": 1}, task, fl.Scaffold(lr), settings)
        yield Case({"what": "a number"}, compute=partial(dict, pi=math.pi))

    def conclude(self, form: Form, done: Results) -> Outcome:
        best = tuned(done.where(method="SCAFFOLD"), "gap", 1e-3, higher=False)
        return Outcome([{"lr": f"{best.lr:g}"}], [judged("it is fast", [True], "as seen")])


class Looked(Tiny):
    """A recipe that looks at the finished runs."""

    name = "looked"

    def cases(self, form: Form, done: Results) -> list[Case]:
        return [replace(case, after=_point) for case in super().cases(form, done) if case.method]


def _point(run: fl.Run) -> dict[str, float]:
    return {"x": float(run.x[0])}


def test_curves_are_kept_unless_a_recipe_needs_none(tmp_path: Path) -> None:
    class Plain(Tiny):
        curves = False

    with_curves, without = (
        carry_out(kind(), Form(), tmp_path / kind.__name__).results.where(method="FedAvg")
        for kind in (Tiny, Plain)
    )
    assert len(with_curves[0].curve["gap"]) == 31
    assert [r.curve for r in without] == [{}, {}]
    assert [(r.end["gap"], r.reach) for r in with_curves] == [
        (r.end["gap"], r.reach) for r in without
    ]


def test_a_case_keeps_numbers_about_its_finished_run(tmp_path: Path) -> None:
    plain, looked = Tiny(), Looked()
    done = carry_out(looked, Form(), tmp_path)
    for r in done.results:
        task = fl.problems.theorem2(gradient=1.0, start=1.0)
        method = {"FedAvg": fl.FedAvg, "SCAFFOLD": fl.Scaffold}[r.labels["method"]](r.labels["lr"])
        run = fl.train(task, method, rounds=30, steps=2, seed=int(r.labels["seed"]))
        assert r.numbers["x"] == pytest.approx(float(run.x[0]), rel=1e-9)
    known = {case.digest for case in plain.cases(Form(), done.results)}
    assert not known & {r.digest for r in done.results}


def test_cases_are_done_once_and_may_depend_on_results(tmp_path: Path, monkeypatch) -> None:
    recipe, form = Tiny(), Form()
    done = carry_out(recipe, form, tmp_path)
    assert done.missing == 0
    assert len(done.results) == 6
    again = done.results.where(seed=1)
    assert [r.labels["lr"] for r in again] == [0.3]
    run = fl.train(
        fl.problems.theorem2(gradient=1.0, start=1.0), fl.Scaffold(0.3), rounds=30, steps=2, seed=1
    )
    assert again[0].end["gap"] == pytest.approx(run.history.last("gap"), rel=1e-6)
    assert again[0].cost("gap", 1e-3) == run.rounds_to("gap", 1e-3)
    assert (
        again[0].cost("gap", 1e-3, "bits") == run.history["bits"][int(again[0].cost("gap", 1e-3))]
    )
    assert done.results.where(what="a number")[0].numbers == {"pi": math.pi}
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 5
    assert fl.runs.read(folders[0]).history.last("round") == 30
    monkeypatch.setattr("fairlead.study.reproduce.runner.train", None)
    monkeypatch.setattr("fairlead.study.reproduce.runner.train_many", None)
    before = (tmp_path / CASES).read_bytes()
    assert len(carry_out(recipe, form, tmp_path).results) == 6
    assert (tmp_path / CASES).read_bytes() == before


def test_a_line_cut_off_is_done_again_and_costs_no_other(tmp_path: Path) -> None:
    recipe, form = Tiny(), Form()
    whole = carry_out(recipe, form, tmp_path / "whole")
    lines = (tmp_path / "whole" / CASES).read_bytes().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / CASES).write_bytes(b"".join(lines[:2]) + lines[2][:40])
    found = carry_out(recipe, form, tmp_path / "cut")
    kept = ("labels", "end", "best", "reach", "curve")
    plain = [
        {
            r.digest: json.dumps(
                [{**r.end, "seconds": 0} if k == "end" else getattr(r, k) for k in kept]
            )
            for r in one.results
        }
        for one in (whole, found)
    ]
    assert plain[0] == plain[1]
    assert len(stored(tmp_path / "cut" / CASES)) == 6


def test_a_budget_ends_between_cases_and_the_next_call_goes_on(tmp_path: Path) -> None:
    first = carry_out(Tiny(), Form(), tmp_path, budget=0.0)
    assert (len(first.results), first.missing) == (0, 5)
    some = carry_out(Tiny(), Form(), tmp_path, only="method=FedAvg")
    assert {r.labels["method"] for r in some.results} == {"FedAvg"}
    assert carry_out(Tiny(), Form(), tmp_path).missing == 0


def test_a_budget_also_ends_between_cases_that_share_their_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[fl.Run] = []
    monkeypatch.setattr(runner, "pays", lambda *_, **__: False)  # trained one by one
    monkeypatch.setattr(runner, "train", lambda *a, **k: done.append(fl.train(*a, **k)) or done[-1])
    monkeypatch.setattr(runner.Work, "over", lambda work: len(done) == 2)
    found = carry_out(Tiny(), Form(), tmp_path, budget=60.0)
    assert len(done) == len(found.results) == 2


def test_finished_cases_elsewhere_count_and_are_added_to(tmp_path: Path) -> None:
    also = tmp_path / "results" / "tiny.full.jsonl"
    carry_out(Tiny(), Form(), tmp_path / "a")
    carry_out(Tiny(), Form(), tmp_path / "a", also=also)
    assert len(stored(also)) == 6
    carry_out(Tiny(), Form(), tmp_path / "b", also=also)
    assert not (tmp_path / "b" / "runs").exists()


def test_a_case_that_another_recipe_has_done_is_not_done_again(tmp_path: Path, monkeypatch) -> None:
    class Other(Tiny):
        name = "other"

    class Different(Tiny):
        name, columns = "different", ("gap", "loss")

    known = {r.name: r for r in (Tiny(), Other(), Different())}
    monkeypatch.setattr(runner, "recipes", lambda: known)
    results = tmp_path / "results"
    first = carry_out(Tiny(), Form(), tmp_path / "tiny" / "full", also=results / "tiny.full.jsonl")
    # finished cases are found beside the folder, and beside the results
    for folder, also in ((tmp_path, None), (tmp_path / "b", results / "other.full.jsonl")):
        mine = folder / "other" / "full"
        found = carry_out(Other(), Form(), mine, also=also)
        assert [r.digest for r in found.results] == [r.digest for r in first.results]
        assert not (mine / "runs").exists()
        assert len(stored(mine / CASES)) == 6
    again = carry_out(Different(), Form(), tmp_path / "different" / "full")
    assert "loss" in again.results[0].curve
    assert "loss" not in first.results[0].curve


def test_long_cases_trained_together_go_on_where_they_were(tmp_path: Path) -> None:
    class Long(Tiny):
        long = True

    whole = carry_out(Long(), Form(), tmp_path / "whole")
    (tmp_path / "cut").mkdir()
    cases = list(Long().cases(Form(), Results([])))
    for kind in (fl.FedAvg, fl.Scaffold):
        mine = [case for case in cases if isinstance(case.method, kind)]
        names = [f"{case.name[:80]}-{case.digest[:8]}" for case in mine]
        work = [(case.method, 0) for case in mine]
        outs = [tmp_path / "cut" / "runs" / name for name in names]
        assert mine[0].task is not None
        fl.train_many(mine[0].task(), work, outs=outs, **{**mine[0].settings, "rounds": 10})
    before = fl.runs.read(outs[0]).history.rows
    assert before[-1]["round"] == 10
    found = carry_out(Long(), Form(), tmp_path / "cut")
    assert fl.runs.read(outs[0]).history.rows[:11] == before  # with its seconds
    for one, other in zip(whole.results, found.results, strict=True):
        assert one.digest == other.digest
        assert {**one.end, "seconds": 0} == {**other.end, "seconds": 0}


def test_another_setting_is_another_case(tmp_path: Path) -> None:
    carry_out(Tiny(), Form(), tmp_path)
    done = carry_out(Tiny(), Form(readings={"start": "2"}), tmp_path)
    assert len(stored(tmp_path / CASES)) == 6 + 5  # the number is the same
    assert len(done.results) == 6
    for readings in ({"start": "3"}, {"end": "1"}):
        with pytest.raises(fl.FairleadError, match="there is no reading of"):
            carry_out(Tiny(), Form(readings=readings), tmp_path)


def test_the_best_step_size_and_whether_it_lies_at_the_edge() -> None:
    def result(lr: float, seed: int, rounds: float | None, accuracy: float) -> Result:
        reach = {} if rounds is None else {"accuracy": {"0.5": [rounds] * 6}}
        return Result({"lr": lr, "seed": seed}, "", best={"accuracy": accuracy}, reach=reach)

    reached = Results([result(0.1, 0, 30, 0.6), result(0.1, 1, 50, 0.6), result(0.3, 0, 10, 0.7),
                       result(0.3, 1, 60, 0.5), result(1.0, 0, None, 0.9), result(1.0, 1, 5, 0.9)])  # fmt: skip
    best = tuned(reached, "accuracy", 0.5)
    assert (best.lr, best.edge, len(best.results)) == (0.3, False, 2)
    assert tuned(reached, "accuracy").lr == 1.0
    assert tuned(reached, "accuracy").edge
    assert best.results.costs("accuracy", 0.5) == [10, 60]
    assert Results([result(1.0, 0, None, 0.9)])[0].cost("accuracy", 0.5) == math.inf


def test_verdicts() -> None:
    assert judged("", [True, True], "").verdict == "holds"
    assert judged("", [True, True, False], "").verdict == "in part"
    assert judged("", [True, False], "").verdict == "does not hold"
    assert (
        judged("", [True], "", void="the best step lies at the edge of its grid").verdict == "open"
    )
    assert judged("", [], "").verdict == "open"
    assert (
        verdicts(Outcome([], [judged("", [True], ""), judged("", [False], "")]))
        == "1 holds, 1 does not hold"
    )


def test_the_page_is_made_from_what_is_stored(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.study.reproduce.page.recipe", lambda name: Tiny())
    monkeypatch.setattr("fairlead.study.reproduce.page.recipes", lambda: {"tiny": Tiny()})
    results = tmp_path / "results"
    carry_out(Tiny(), Form(), tmp_path / "a", also=results / "tiny.full.jsonl")
    assert stored_form(results / "tiny.full-start=2.jsonl")[1].readings == {"start": "2"}
    odd = stored_form(results / "tiny.quick-split=dirichlet-balanced-start=1.jsonl")[1]
    assert odd == Form(True, readings={"split": "dirichlet-balanced", "start": "1"})
    (page,) = write_page(results, tmp_path / "results.md")
    text = page.read_text()
    assert "## tiny" in text
    assert "| 0.3 |" in text
    assert "**holds** it is fast: as seen." in text
    (results / "tiny.full.jsonl").unlink()
    with pytest.raises(fl.FairleadError, match="holds no results"):
        write_page(results, tmp_path / "results.md")


def test_the_quick_form_is_shown_until_the_full_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.study.reproduce.page.recipe", lambda name: Tiny())
    monkeypatch.setattr("fairlead.study.reproduce.page.recipes", lambda: {"tiny": Tiny()})
    full = tmp_path / "results" / "tiny.full.jsonl"
    carry_out(Tiny(), Form(), tmp_path / "a", also=full)
    whole = full.read_text()
    full.with_name("tiny.quick.jsonl").write_text(whole)

    def shown() -> list[tuple[str, str]]:
        return [(f.heading, f.how) for f in concluded(full.parent)]

    assert shown() == [("tiny", "full")]
    full.write_text("".join(whole.splitlines(keepends=True)[:-2]))
    part = ("tiny", "full, 2 cases not run yet")
    assert shown() == [part, ("tiny quick", "quick form")]
    text = write_page(full.parent, tmp_path / "results.md")[0].read_text()
    assert "## tiny\n" in text
    assert "## tiny quick\n" in text
    full.unlink()
    assert shown() == [("tiny", "quick form")]


def test_every_item_of_the_papers_has_a_recipe_or_a_reason() -> None:
    written = {item.recipe for item in ITEMS if item.recipe}
    assert set(recipes()) <= written
    for item in ITEMS:
        assert item.recipe or item.why


@pytest.mark.parametrize("name", list(recipes()))
@pytest.mark.parametrize("quick", [True, False])
def test_the_cases_of_every_recipe_are_distinct_and_described(name: str, quick: bool) -> None:
    recipe = recipes()[name]
    if recipe.minutes[0 if quick else 1] is None:
        with pytest.raises(fl.FairleadError, match="has no"):
            recipe.check(Form(quick=quick))
        return
    cases = list(recipe.cases(Form(quick=quick), Results([])))
    assert cases
    assert len({case.digest for case in cases}) == len({case.name for case in cases}) == len(cases)
    assert recipe.title
    assert recipe.__doc__
    assert recipe.paper in {item.paper for item in ITEMS}


def test_cases_go_together_and_processes_share_groups_of_long_ones_on_a_gpu(tmp_path: Path) -> None:
    cases = [Case({"lr": lr}, None, fl.FedAvg(lr), {"rounds": 2}) for lr in (0.1, 0.2, 0.3, 0.4)]
    cases.append(Case({"lr": 0.1}, None, fl.Scaffold(0.1), {"rounds": 2}))

    def sizes(device: str, long: bool) -> list[int]:
        work = Work("x", Form(device=device), tmp_path, jobs=2)
        return [len(some) for some in _together(cases, work, long)]

    assert sizes("cpu", False) == sizes("cpu", True) == [2, 2, 1]
    assert sizes("cuda", False) == [4, 1]
    assert sizes("cuda", True) == [2, 2, 1]
