"""Processes that share a recipe's cases: each case is done once, and one whose process was killed is done by another."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import fairlead as fl
from fairlead.study.reproduce import Case, Form, carry_out, recipe
from fairlead.study.reproduce.claims import Claims, Work
from fairlead.study.reproduce.runner import CASES

HOLDING = """
import sys
from pathlib import Path
from fairlead.study.reproduce import Case
from fairlead.study.reproduce.claims import Claims

with Claims(Path(sys.argv[1])).of([Case({"k": 0}), Case({"k": 1})]) as mine:
    print(len(mine), flush=True)
    sys.stdin.read()
"""


def test_processes_share_the_cases_and_find_the_same(tmp_path: Path) -> None:
    made, form = recipe("scaffold-fig3"), Form()
    alone = carry_out(made, form, tmp_path / "alone", only="G=1.0,start=zero")
    also = tmp_path / "results" / "fig3.jsonl"
    shared = carry_out(made, form, tmp_path / "shared", only="G=1.0,start=zero", also=also, jobs=3)
    assert shared.missing == alone.missing
    assert len(shared.results) == len(alone.results) > 10
    for one in alone.results:
        (two,) = [r for r in shared.results if r.digest == one.digest]
        assert two.reach == one.reach
        assert two.end["gap"] == pytest.approx(one.end["gap"], rel=1e-9, abs=1e-14)
    for file in (tmp_path / "shared" / CASES, also):
        digests = [json.loads(line)["digest"] for line in file.read_text().splitlines()]
        assert len(digests) == len(set(digests)) == len(shared.results)


def test_a_case_is_claimed_by_one_process_and_free_when_that_is_killed(tmp_path: Path) -> None:
    cases = [Case({"k": k}) for k in range(3)]
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"2\n"
        claims = Claims(tmp_path)
        for wanted, free in ((cases, []), (cases[1:2], []), (cases[2:], cases[2:])):
            with claims.of(wanted) as mine:
                assert mine == free
        with claims.of([cases[2], cases[0]]) as mine:  # all that is free, from the first on
            assert mine == [cases[2]]
        other.kill()
        claims.wait(cases[0])
        with claims.of(cases) as mine:
            assert mine == cases
        claims.close()


def test_an_order_arrives_as_it_was_given(tmp_path: Path) -> None:
    form = Form(True, 2, "cpu", {"data": "fashion_mnist"})
    work = Work("scaffold-table3", form, tmp_path, 12.5, "lr=1", tmp_path / "a.jsonl", 4)
    assert Work.read(json.loads(json.dumps(work.packed()))) == work
    plain = Work("drift-toy", Form(), tmp_path)
    assert Work.read(json.loads(json.dumps(plain.packed()))) == plain


def test_jobs_must_be_a_number_of_processes(tmp_path: Path) -> None:
    with pytest.raises(fl.FairleadError, match="jobs is 0: it must be at least 1"):
        carry_out(recipe("scaffold-fig3"), Form(), tmp_path, jobs=0)


def test_a_helper_whose_parent_has_ended_does_nothing(tmp_path: Path) -> None:
    order = {"parent": 0, "cores": [0], "work": Work("drift-toy", Form(), tmp_path).packed()}
    run = partial(subprocess.run, capture_output=True, text=True, check=False)
    helper = "fairlead.study.reproduce.helper"
    gone = run([sys.executable, "-m", helper, json.dumps(order)])
    assert (gone.returncode, gone.stderr) == (1, "")
    assert not any(tmp_path.iterdir())
