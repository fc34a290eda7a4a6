"""The report's page, opened in a browser: what it shows, what its switches do, and that it is shut."""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import re
import shutil
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:  # the tests without a browser still run
    expect = sync_playwright = None

from fairlead.errors import FairleadError
from fairlead.report import html, watch

AXES = {
    "round": "rounds", "exchanges": "exchanges", "bits": "bits up and down", "bits_up": "bits up",
    "bits_down": "bits down", "gradients": "sample gradients", "seconds": "seconds",
}  # fmt: skip
METHODS = {"FedSGD": 30.0, "FedAvg": 20.0, "Scaffold": 7.0, "FedPAQ": 16.0}
PATIENCE = 120_000  # milliseconds; only ends a test whose event never comes
EVIL = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script><!--'


def columns(rng: np.random.Generator, rounds: int, speed: float) -> dict[str, list[float]]:
    """The history of a run that learns at some speed."""
    r = np.arange(rounds + 1.0)
    accuracy = 0.1 + 0.87 * (1 - np.exp(-r / speed)) + 0.01 * rng.normal(size=len(r))
    up, down = r * 160 * 7850, r * 80 * 7850
    made = {
        "round": r, "exchanges": 5 * r, "bits": up + down, "bits_up": up, "bits_down": down,
        "gradients": 400 * r, "seconds": np.cumsum(rng.uniform(0.04, 0.06, len(r))),
        "accuracy": accuracy, "loss": 2.3 * np.exp(-r / speed) + rng.uniform(0.05, 0.1, len(r)),
    }  # fmt: skip
    return {name: values.tolist() for name, values in made.items()}


def report(**changes: Any) -> dict[str, Any]:
    """Four methods with three seeds each, one of which diverges and one of which still runs."""
    rng = np.random.default_rng(7)
    groups: list[dict[str, Any]] = []
    for method, speed in METHODS.items():
        runs = []
        for seed in range(3):
            status, rounds = "finished", 60
            if (method, seed) == ("FedAvg", 2):
                status, rounds = "diverged", 25
            if (method, seed) == ("FedPAQ", 1):
                status, rounds = "running", 31
            made = columns(rng, rounds, speed * rng.uniform(0.95, 1.05))
            if status == "diverged":
                made["loss"][-3:] = [1e3, 1e9, 1e200]
            run = {"seed": seed, "folder": f"out/{method}/{seed}", "status": status}
            runs.append({**run, "rounds": rounds, "columns": made})
        settings = {"method": method, "lr": 0.3, "task": {"name": "digits", "l2": 1e-4}}
        label = f"{method}, lr 0.3"
        groups.append({"label": label, "method": method, "lr": 0.3, "settings": settings, "runs": runs})  # fmt: skip
    counts = rng.integers(0, 40, (12, 10)) * (rng.random((12, 10)) < 0.4)
    drift = 1 + 99 * rng.random((4, 60)) * np.exp(-np.arange(60) / 20)
    bibtex = "@inproceedings{karimireddy2020,\n  title = {SCAFFOLD}\n}"
    return {
        "title": "Four methods on digits", "made": "2026-01-02T03:04:05+00:00", "fairlead": "0.1.0",
        "axes": [{"key": key, "label": label} for key, label in AXES.items()],
        "metrics": [
            {"key": "accuracy", "label": "accuracy", "larger": True},
            {"key": "loss", "label": "loss", "larger": False},
        ],
        "first": {"metric": "accuracy", "axis": "round"},
        "target": {"metric": "accuracy", "value": 0.9},
        "groups": groups,
        "splits": [{
            "label": "digits, Dirichlet 0.2", "sentence": "12 clients hold 0 to 200 samples.",
            "classes": [str(k) for k in range(10)], "counts": counts.tolist(),
            "more": "the first 12 of 40 clients",
        }],
        "drift": [
            {"label": name, "rounds": list(range(1, 61)), "values": drift.tolist(),
             "layers": ["0.weight", "0.bias", "2.weight", "2.bias"]}
            for name in ("FedAvg, lr 0.3", "Scaffold, lr 0.3")
        ],
        "sensitivity": [
            {"label": "FedAvg", "metric": "accuracy", "lr": [0.1, 0.3, 1], "best": 0.3,
             "rounds": [None, 40, 55], "final": [0.7, 0.91, 0.9]},
            {"label": "Scaffold", "metric": "accuracy", "lr": [0.1, 0.3, 1], "best": 0.3,
             "rounds": [30, 16, None], "final": [0.93, 0.97, None]},
        ],
        "notes": ["accuracy is 0.97 at the centralised solution"],
        "citations": [{"key": "scaffold", "short": "Karimireddy et al. 2020", "bibtex": bibtex}],
        **changes,
    }  # fmt: skip


# ---- the browser


def missing(reason: str) -> NoReturn:
    """Skip, or fail where a browser has to be there."""
    if os.environ.get("FAIRLEAD_NEED_CHROMIUM") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if sync_playwright is None:
        missing("playwright is not installed, so no chromium can be driven")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        missing("there is no chromium on this machine")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path)
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open data as a file, or an address, in a page that must not complain or look elsewhere."""
    contexts, troubles, asked = [], [], []

    def go(
        data: Any, hash: str = "", width: int = 1200, scheme: str = "light", setup: str = ""
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        address = data if isinstance(data, str) else f"{tmp_path.as_uri()}/report.html"
        if not isinstance(data, str):
            html.write(data, tmp_path / "report.html")
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda line: page.told.append(line.text))
        page.on("request", lambda request: asked.append((address, request.url)))
        page.told = []
        if setup:
            page.add_init_script(setup)
        page.goto(address + hash)
        return page

    yield go
    told = [line for context in contexts for page in context.pages for line in page.told]
    for context in contexts:
        context.close()
    expected = re.compile(r"Failed to load resource.*(503|ERR_CONNECTION_REFUSED)")
    assert troubles == []
    assert [line for line in told if not expected.search(line)] == []
    for address, url in asked:
        assert url.split("#")[0].startswith((address, "data:image/", "blob:"))


def texts(page: Any, selector: str) -> list[str]:
    return [" ".join(words.split()) for words in page.locator(selector).all_text_contents()]


def table(page: Any) -> dict[str, dict[str, str]]:
    """The table of the target, by group and by column."""
    heads, rows = page.locator("#goal-table").evaluate(
        """(table) => [[...table.tHead.rows[0].cells].map((cell) => cell.dataset.key),
            [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent))]"""
    )
    return {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows}


def spread(values: list[float], digits: int) -> str:
    """Mean and std as the page writes them."""
    mean, std = np.mean(values), np.std(values)
    unit, letter = next(
        (u, s) for u, s in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")) if mean >= u or u == 1
    )
    if mean < 1e4:
        unit, letter = 1, ""
    places = max(0, digits - 1 - math.floor(math.log10(mean / unit)))
    return f"{mean / unit:,.{places}f}{letter} ± {std / unit:,.{places}f}{letter}"


def first_row(run: dict[str, Any], metric: str, value: float) -> int | None:
    column = run["columns"][metric]
    good = [row for row, v in enumerate(column) if (v <= value if metric == "loss" else v >= value)]
    return good[0] if good else None


def expected_cost(group: dict[str, Any], key: str, metric: str, value: float) -> str:
    rows = [first_row(run, metric, value) for run in group["runs"]]
    paid = [run["columns"][key][r] for run, r in zip(group["runs"], rows, strict=True) if r is not None]  # fmt: skip
    if len(paid) == len(rows):
        return spread(paid, 3)
    short = [run["columns"][key][-1] for run, r in zip(group["runs"], rows, strict=True)
             if r is None and run["status"] != "diverged"]  # fmt: skip
    words = f"{min(short):g}+" if short else "diverged"
    return f"{words} ({len(paid)} of {len(rows)} seeds)" if paid else words


def downloaded(page: Any, label: str) -> bytes:
    with page.expect_download() as wait:
        page.get_by_role("button", name=label).click()
    return Path(wait.value.path()).read_bytes()


def curves(page: Any) -> dict[str, dict[float, dict[str, str]]]:
    """The curves as saved, by group and x."""
    rows = list(csv.DictReader(downloaded(page, "save the curves as CSV").decode().splitlines()))
    x = list(rows[0])[1]
    found: dict[str, dict[float, dict[str, str]]] = {}
    for row in rows:
        found.setdefault(row["group"], {})[float(row[x])] = row
    return found


# ---- without a browser


def test_the_page_is_complete_in_itself_and_shut():
    page = html.render(report())
    assert not re.findall(r"(?:src|href)=[\"']?(?!data:)[\w/.]", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert "connect-src" not in policy[1]
    assert "connect-src 'self'" in html.render({}, live=True)


def test_data_cannot_end_the_script_and_numbers_that_are_not_finite_are_null():
    data = {"title": EVIL + "\u2028", "x": [np.float64("nan"), math.inf, np.arange(2)], 3: {1}}
    page = html.render(data)
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found is not None
    assert "<" not in found[1]
    assert found[1].isascii()
    assert json.loads(found[1]) == {
        "title": EVIL + "\u2028",
        "x": [None, None, [0, 1]],
        "3": "{1}",
    }


def test_a_report_is_written_whole_or_refused_in_a_sentence(tmp_path: Path):
    path = html.write({"title": "one"}, tmp_path / "new" / "report.html")
    assert html.write({"title": "two \udc80"}, path).read_text("utf-8").count("<title>two ?<") == 1
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(FairleadError, match=r"cannot be written to .*new: "):
        html.write({}, path.parent)
    with pytest.raises(FairleadError, match="cannot be written"):
        html.write({}, path / "below.html")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def ask(address: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urlopen(Request(address, method=method, headers=named)) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def test_the_server_answers_with_data_a_tag_and_gzip(monkeypatch):
    times, clock = iter(range(99)), [0.0]
    monkeypatch.setattr(watch, "monotonic", lambda: clock[0])
    data = report()
    with watch.Server(lambda: {**data, "made": str(next(times))}) as server:
        status, headers, body = ask(f"{server.url}data.json")
        assert (status, json.loads(body)) == (200, {**data, "made": "0"})
        assert ask(f"{server.url}data.json", If_None_Match=headers["ETag"])[0] == 304
        _, packed, small = ask(f"{server.url}data.json", Accept_Encoding="gzip")
        assert packed["Content-Encoding"] == "gzip"
        assert gzip.decompress(small) == body
        assert ask(server.url, "HEAD")[::2] == (200, b"")
        assert b'data-live="yes"' in ask(server.url)[2]
        clock[0] = 1.1  # gathered anew, at another time, but with nothing new
        assert ask(f"{server.url}data.json", If_None_Match=headers["ETag"])[0] == 304
        assert next(times) == 2


def test_the_server_refuses_other_paths_methods_and_names():
    with watch.Server(dict) as server:
        assert ask(f"{server.url}page.css")[0] == 404
        assert ask(f"{server.url}../data.json")[0] == 404
        assert ask(server.url, "POST")[0] == 405
        assert ask(server.url, "DELETE")[1]["Allow"] == "GET, HEAD"
        for name in ("evil.example", "127.0.0.1.evil.example:80", "192.168.0.9", "[::2]:8", ""):
            assert ask(server.url, Host=name)[0] == 403
        for name in ("localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:8080", "[::1]"):
            assert ask(server.url, Host=name)[0] == 200


def test_a_server_on_all_addresses_answers_to_numbers_but_not_to_names():
    with watch.Server(dict, host="0.0.0.0") as server:
        address = f"http://127.0.0.1:{server.port}/"
        assert ask(address, Host="192.168.0.9:8000")[0] == 200
        assert ask(address, Host="evil.example")[0] == 403


def test_what_cannot_be_gathered_or_listened_on_is_a_sentence():
    def broken() -> dict[str, Any]:
        raise KeyError("round")

    with watch.Server(broken) as server:
        status, _, body = ask(f"{server.url}data.json")
        assert status == 503
        assert json.loads(body) == {"error": "the runs cannot be read right now: 'round'"}
        assert ask(server.url)[0] == 200
        with pytest.raises(FairleadError, match=f"port {server.port} is in use"):
            watch.Server(broken, port=server.port)
    with pytest.raises(FairleadError, match="port 70000 does not exist"):
        watch.Server(broken, port=70000)
    with pytest.raises(FairleadError, match="cannot listen on"):
        watch.Server(broken, host="203.0.113.9")


def test_serving_ends_with_ctrl_c_and_gives_the_port_back():
    told: list[str] = []

    def stop_at_once(address: str) -> None:
        told.append(address)
        raise KeyboardInterrupt

    watch.serve(dict, on_ready=stop_at_once)
    port = int(told[0].rstrip("/").rsplit(":", 1)[1])
    watch.Server(dict, port=port).close()


# ---- what the page shows


def test_the_head_counts_runs_and_names_those_that_need_a_look(visit):
    page = visit(report())
    assert page.title() == "Four methods on digits"
    assert texts(page, "h1") == ["Four methods on digits"]
    assert "4 groups · 12 runs · 2 January 2026" in page.inner_text("#facts")
    assert texts(page, "#chips li") == [
        "1 runningFedPAQ, lr 0.3, seed 1", "1 divergedFedAvg, lr 0.3, seed 2", "10 finished",
    ]  # fmt: skip
    assert page.locator("main > section:visible").count() == 9
    assert page.locator("svg[role=img]").count() == 5
    assert all(svg.get_attribute("aria-label") for svg in page.locator("svg[role=img]").all())


def test_curves_are_means_over_seeds_and_thin_where_seeds_end(visit):
    data = report()
    page = visit(data)
    found = curves(page)
    for group in data["groups"]:
        runs = [run["columns"]["accuracy"] for run in group["runs"]]
        for row, saved in found[group["label"]].items():
            here = [values[int(row)] for values in runs if row < len(values)]
            assert float(saved["accuracy"]) == pytest.approx(np.mean(here))
            assert float(saved["std"]) == pytest.approx(np.std(here), abs=1e-12)
            assert int(saved["seeds"]) == len(here)
    assert page.locator("#curves-chart .line.mean").count() == 4
    assert page.locator("#curves-chart .line.part").count() == 2
    assert page.locator("#curves-chart .band").count() == 4
    assert page.locator("#curves-chart .line.cross").count() == 1
    assert page.locator("#curves-chart .goal").count() == 1
    assert "diverged" in page.inner_text("#curves-words")


def test_seeds_with_other_x_are_joined_where_all_have_values(visit):
    runs = [
        {"seed": 0, "columns": {"seconds": [0, 2, 4], "loss": [4, 2, 0]}},
        {"seed": 1, "columns": {"seconds": [1, 3, 5], "loss": [1, 3, None]}},
    ]
    data = report(groups=[{"label": "a", "runs": runs}], first={"metric": "loss", "axis": "seconds"})  # fmt: skip
    found = curves(visit(data))["a"]
    assert {x: float(row["loss"]) for x, row in found.items()} == {0: 4, 1: 2, 2: 2, 3: 2, 4: 0}
    assert [int(row["seeds"]) for row in found.values()] == [1, 2, 2, 2, 1]


def test_switches_change_the_chart_and_stay_in_the_address(visit):
    page = visit(report())
    page.select_option("#metric", "loss")
    assert page.is_checked("#logy")  # a loss starts on a log scale
    assert "Loss against rounds" in page.inner_text("#curves-words")
    page.uncheck("#logy")
    page.select_option("#axis", "bits")
    labels = texts(page, "#curves-chart .axes text")
    assert "bits up and down" in labels
    assert "40M" in labels
    page.check("#logx")
    labels = texts(page, "#curves-chart .axes text")
    assert "10M" in labels
    assert "12 points at or below zero" in page.inner_text("#curves-words")
    page.check("#seeds")
    assert page.locator("#curves-chart .line.seed").count() == 12
    page.uncheck("#seeds")
    page.select_option("#band", "none")
    assert page.locator("#curves-chart .band").count() == 0
    page.select_option("#smooth", "5")
    assert "loss, mean of 5 rounds" in texts(page, "#curves-chart .name")
    page.get_by_role("button", name="FedAvg, lr 0.3").click()
    assert page.locator("#curves-chart .line.mean").count() == 3
    assert page.get_by_role("button", name="FedAvg, lr 0.3").get_attribute("aria-pressed") == "false"  # fmt: skip
    again = visit(report(), hash=page.evaluate("location.hash"))
    for selector in ("#curves-chart svg", "#curves-words", "#goal-table"):
        assert again.inner_html(selector) == page.inner_html(selector)
    for name in ("metric", "axis", "band", "smooth"):
        assert again.input_value(f"#{name}") == page.input_value(f"#{name}")
    again.evaluate("location.hash = ''")
    expect(again.locator("#metric")).to_have_value("accuracy")
    assert again.locator("#curves-chart .line.mean").count() == 4


def test_smoothing_averages_over_rounds_before(visit):
    data = report()
    found = curves(visit(data, hash="#smooth=5"))["Scaffold, lr 0.3"]
    values = [run["columns"]["accuracy"] for run in data["groups"][2]["runs"]]
    for row in (0, 3, 40):
        seeds = [np.mean(v[max(0, row - 4) : row + 1]) for v in values]
        assert float(found[row]["accuracy"]) == pytest.approx(np.mean(seeds))


def test_pointer_and_keys_show_every_value(visit):
    page = visit(report())
    box = page.locator("#curves-chart svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 150)
    note = page.inner_text("#note")
    assert all(f"{method}, lr 0.3" in note for method in METHODS)
    assert "2 of 3 seeds" in note
    assert note.index("Scaffold") < note.index("FedSGD")  # best first
    page.mouse.move(5, 5)
    assert page.is_hidden("#note")
    page.focus("#curves-chart svg")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "rounds: 1\n" in page.inner_text("#note")


def test_dragging_zooms_and_a_double_click_shows_all(visit):
    page = visit(report())
    box = page.locator("#curves-chart svg").bounding_box()
    y = box["y"] + 200
    page.mouse.move(box["x"] + 400, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, y)
    page.mouse.move(box["x"] + 700, y)
    page.mouse.up()
    assert page.is_visible("#unzoom")
    low, high = map(float, re.search(r"zoom=([\d.]+)%7E([\d.]+)|$", page.url).groups())
    assert 0 < low < high < 60
    shown = curves(page)["Scaffold, lr 0.3"]
    assert min(shown) >= low
    assert max(shown) <= high
    page.locator("#curves-chart svg").dblclick(position={"x": 500, "y": 200})
    assert page.is_hidden("#unzoom")
    assert len(curves(page)["Scaffold, lr 0.3"]) == 61


def test_the_table_is_what_numpy_says(visit):
    data = report()
    page = visit(data)
    for metric, value in (("accuracy", "0.9"), ("accuracy", "0.8"), ("loss", "0.5")):
        page.select_option("#goal-metric", metric)
        page.fill("#goal-value", value)
        found = table(page)
        for group in data["groups"]:
            row = found[group["label"]]
            for key in ("round", "exchanges"):
                assert row[key] == expected_cost(group, key, metric, float(value))
            best = max if metric == "accuracy" else min
            values = [best(run["columns"][metric]) for run in group["runs"]]
            assert row["best"] == spread(values, 4)
        row, fast = found["Scaffold, lr 0.3"], data["groups"][2]
        for key in ("bits_up", "bits_down", "bits", "gradients", "seconds"):
            assert row[key] == expected_cost(fast, key, metric, float(value))
        assert row["final"] == spread([run["columns"][metric][-1] for run in fast["runs"]], 4)
        sign = "≥" if metric == "accuracy" else "≤"
        assert page.inner_text("#goal-words").endswith(f"{metric} {sign} {value}")
        bold = page.locator("#goal-table tbody tr", has_text="Scaffold").locator("td b")
        assert bold.count() >= 7  # it is best in every cost
    assert "(1 of 3 diverged)" in found["FedAvg, lr 0.3"]["final"]


def test_another_target_than_the_tuned_one_is_said(visit):
    words = "the fewest rounds to accuracy ≥ 0.9 on the test set"
    unranked = {"key": "bits", "label": "all bits", "larger": None}
    metrics = [*report()["metrics"], unranked]
    tuned = [{"keys": ["accuracy"], "value": 0.9, "words": words}]
    page = visit(report(tuned=tuned, metrics=metrics))
    assert page.inner_text("#goal-tuned") == f"Step sizes were tuned for {words}."
    page.fill("#goal-value", "0.8")
    assert "not for this target: other step sizes may reach it sooner." in page.inner_text(
        "#goal-tuned"
    )
    page.fill("#goal-value", "")
    assert page.inner_text("#goal-tuned") == ""
    options = page.locator("#goal-metric option").all_inner_texts()
    assert options == ["accuracy", "loss"]  # nothing says which way bits are better
    assert visit(report()).inner_text("#goal-tuned") == ""


def test_the_table_without_a_target_and_with_junk(visit):
    page = visit(report(target=None))
    assert list(table(page)["FedAvg, lr 0.3"]) == ["best", "final"]
    page.fill("#goal-value", "0,7")
    assert "round" in table(page)["FedAvg, lr 0.3"]
    page.fill("#goal-value", "much")
    assert page.get_attribute("#goal-value", "aria-invalid") == "true"
    page.fill("#goal-value", "")
    assert list(table(page)["FedAvg, lr 0.3"]) == ["best", "final"]


def test_the_table_sorts_with_what_is_missing_last(visit):
    page = visit(report())
    head = page.locator("#goal-table th[data-key=round]")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    order = [label.split(",")[0] for label in table(page)]
    assert order[0] == "Scaffold"
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    down = [label.split(",")[0] for label in table(page)]
    costs = [cells["round"] for cells in table(page).values()]
    assert [("+" in cost) for cost in costs] == sorted("+" in cost for cost in costs)
    page.locator("#goal-table th[data-key=best] button").click()
    best = [float(cells["best"].split(" ")[0]) for cells in table(page).values()]
    assert best == sorted(best, reverse=True)
    page.locator("#goal-table th[data-key=label] button").click()
    assert list(table(page)) == sorted(table(page))
    assert set(order) == set(down)


# what a button says for two seconds stays, however late it is looked at
LASTING = """{
  const later = window.setTimeout.bind(window);
  window.setTimeout = (what, wait) => (wait === 2000 ? 0 : later(what, wait));
}"""


def test_maps_and_step_sizes(visit):
    data = report()
    page = visit(data, setup=LASTING)
    filled = np.count_nonzero(data["splits"][0]["counts"])
    assert page.locator("#split-chart .cells circle").count() == filled
    assert "the first 12 of 40 clients" in page.inner_text("#split-words")
    assert "log scale" in page.inner_text("#drift-words")
    assert page.locator("#drift-pick option").count() == 2
    page.select_option("#drift-pick", "1")
    assert "of Scaffold, lr 0.3" in page.inner_text("#drift-words")
    page.locator("#drift-chart").scroll_into_view_if_needed()
    page.locator("#drift-chart svg").hover(position={"x": 600, "y": 60})
    expect(page.locator("#note")).to_be_visible()
    assert re.search(r"0.weight\s+round \d+: \d", page.inner_text("#note"))
    assert page.locator("#steps-chart .ring").count() == 4
    assert page.locator("#steps-chart .cross").count() == 2
    assert "BibTeX" in page.inner_text("#cite-list")
    page.get_by_role("button", name="copy BibTeX").click()
    page.get_by_role("button", name="copied").wait_for()


def test_what_is_shown_of_a_split_is_said_once(visit):
    split = report()["splits"][0]
    both = "Shown: the first 12 clients. Shown: the 10 most frequent classes."
    words = visit(report(splits=[{**split, "more": both}])).inner_text("#split-words")
    assert words.endswith("Shown: the first 12 clients, and the 10 most frequent classes.")
    assert words.count("Shown") == 1
    plain = visit(report()).inner_text("#split-words")
    assert plain.endswith(" Shown: the first 12 of 40 clients.")


def colours_of(page: Any, selector: str) -> dict[str, str]:
    """The colour beside every label."""
    return dict(
        page.locator(selector).evaluate_all(
            """(all) => all.map((node) => [node.textContent.trim().split(",")[0],
                getComputedStyle(node.querySelector("line")).stroke])"""
        )
    )


def test_colours_follow_the_method(visit):
    """In every section, and whichever methods a page has."""
    data = report()
    for group, look in zip(data["groups"], (0, 1, 3, 2), strict=True):
        group["look"] = look
    page = visit(data)
    legend = colours_of(page, "#legend button")
    assert len(set(legend.values())) == 4
    assert colours_of(page, "#goal-table tbody tr") == legend
    assert colours_of(page, "#steps-legend > span").items() <= legend.items()
    page.locator("#goal-table th[data-key=round] button").click()  # also in another order
    assert colours_of(page, "#goal-table tbody tr") == legend
    two = visit({**data, "groups": [data["groups"][2], data["groups"][1]]})
    assert colours_of(two, "#legend button").items() <= legend.items()


def test_bold_tells_groups_apart_or_is_not_there(visit):
    data = report()
    page = visit(data)
    rows = page.locator("#goal-table tbody tr")
    bold = rows.evaluate_all(
        "(rows) => rows.map((row) => row.querySelectorAll('td:nth-child(2) b').length)"
    )
    assert sum(bold) == 1  # one method is far ahead in rounds
    assert "Bold" in page.inner_text("#goal-note")
    alike = [{**group, "runs": data["groups"][2]["runs"]} for group in data["groups"]]
    page = visit(report(groups=alike))
    assert page.locator("#goal-table b").count() == 0
    assert "Bold" not in page.inner_text("#goal-note")
    one = visit(report(groups=data["groups"][:1]))
    assert one.locator("#goal-table b").count() == 0


def test_bold_is_also_what_is_within_a_standard_deviation(visit):
    data = report()
    near = [{**run, "columns": {**run["columns"]}} for run in data["groups"][2]["runs"]]
    for run in near:
        run["columns"]["accuracy"] = [v - 1e-5 for v in run["columns"]["accuracy"]]
    data["groups"][0] = {**data["groups"][0], "runs": near}
    page = visit(data)
    bold = page.locator("#goal-table tbody tr").evaluate_all(
        "(rows) => rows.filter((row) => row.cells[8].querySelector('b')).map((row) => row.cells[0].textContent)"
    )
    assert bold == ["FedSGD, lr 0.3", "Scaffold, lr 0.3"]


@pytest.mark.parametrize("width", [1200, 700])
def test_long_sentences_wrap(visit, width):
    data = report()
    for number, group in enumerate(data["groups"]):
        group["settings"]["engine"] = f"vmap: {number} " + "twice as fast as one at a time, " * 8
    page = visit(data, width=width)
    region = page.get_by_role("region", name="Settings that differ")
    assert region.evaluate("(node) => node.scrollWidth <= node.clientWidth")
    tall = page.locator("#settings-body td.sentence").first.evaluate(
        "(cell) => cell.offsetHeight / parseFloat(getComputedStyle(cell).fontSize)"
    )
    assert tall > 3.5  # several lines


def test_charts_stand_side_by_side(visit):
    metrics = [*report()["metrics"], {"key": "drift", "label": "drift", "larger": None}]
    data = report(metrics=metrics)
    for group in data["groups"]:
        for run in group["runs"]:
            run["columns"]["drift"] = [1.0 + v for v in run["columns"]["accuracy"]]
    page = visit(data)
    charts = page.locator("#curves-chart svg")
    assert charts.count() == 1
    page.select_option("#beside", "loss")
    assert charts.count() == 2
    boxes = [charts.nth(k).bounding_box() for k in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[1]["x"] >= boxes[0]["x"] + boxes[0]["width"]
    assert charts.nth(1).get_attribute("aria-label").startswith("loss against rounds")
    assert page.inner_text("#curves-words").startswith("Accuracy, loss against rounds")
    charts.nth(1).hover(position={"x": 300, "y": 100})
    expect(page.locator("#note")).to_contain_text("Scaffold, lr 0.3: ")
    assert (
        visit(data, hash=page.evaluate("location.hash")).locator("#curves-chart svg").count() == 2
    )
    page.select_option("#beside", "*")
    assert charts.count() == 3
    page.locator("#legend button", has_text="FedAvg").click()
    assert page.locator("#curves-chart [data-group='FedAvg, lr 0.3']").count() == 0
    ET.fromstring(downloaded(page, "save the curves as SVG").decode())


def test_runs_are_sorted_by_any_column(visit):
    page = visit(report())
    page.get_by_text("12 runs and their folders").click()

    def column(place: int) -> list[str]:
        return texts(page, f"table.runs tbody tr > :nth-child({place})")

    head = page.locator("table.runs thead th")
    assert texts(page, "table.runs thead th") == [
        "group", "seed", "status", "rounds", "final accuracy", "folder",
    ]  # fmt: skip
    head.nth(3).get_by_role("button").click()
    assert [int(n) for n in column(4)] == sorted(int(n) for n in column(4))
    assert column(4)[0] == "25"
    head.nth(3).get_by_role("button").click()
    assert column(4)[-1] == "25"
    assert head.nth(3).get_attribute("aria-sort") == "descending"
    head.nth(2).get_by_role("button").click()
    assert column(3) == sorted(column(3))
    assert page.locator("table.runs").is_visible()  # it stays open


def with_clients() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    clients = [
        {
            "label": f"{method}, lr 0.3", "count": 30, "seeds": 3, "samples": rng.integers(1, 90, 30).tolist(),
            "metrics": [
                {"key": "client_accuracy", "larger": True, "values": [*rng.random(29).tolist(), None]},
                {"key": "personal_test_loss", "larger": False, "values": (5 * rng.random(30)).tolist()},
            ],
        }
        for method in ("FedAvg", "Scaffold")
    ]  # fmt: skip
    return report(clients=clients)


def test_a_panel_shows_every_client(visit):
    data = with_clients()
    page = visit(data)
    assert page.locator("#clients-chart svg").count() == 2
    values = np.array(data["clients"][1]["metrics"][0]["values"][:29])
    words = page.inner_text("#clients-words")
    worst = np.sort(values)[:3].mean()
    assert (
        f"Scaffold, lr 0.3: {values.mean():.4g} ± {values.std():.2g}, worst tenth {worst:.4g}"
        in words
    )
    assert "29 of 30 clients" in words
    assert (
        colours_of(page, "#clients-legend > span").items()
        <= colours_of(page, "#legend button").items()
    )
    page.get_by_text("29 clients one by one, the worst of FedAvg, lr 0.3 first").click()
    rows = texts(page, "table.clients tbody tr > :first-child")
    first = np.argsort(data["clients"][0]["metrics"][0]["values"][:29])
    assert rows == [f"client {k}" for k in first]
    page.select_option("#measure", "personal_test_loss")
    assert page.inner_text("#clients-words").startswith("Test loss, personalised, of every client")
    page.locator("#clients-chart svg").first.hover(position={"x": 10, "y": 100})
    loss = max(data["clients"][0]["metrics"][1]["values"])
    expect(page.locator("#note")).to_contain_text(f"{loss:.4g}")
    ET.fromstring(downloaded(page, "save the clients as SVG").decode())
    assert visit(report()).locator("#clients").is_hidden()


def test_settings_show_differences_first(visit):
    page = visit(report())
    assert texts(page, "#settings-body thead th") == ["group", "method"]
    page.get_by_text("3 settings shared by all groups").click()
    shared = page.locator("#settings-body details[open] > dl > dt")
    expect(shared).to_have_text(["lr", "task.name", "task.l2"])


def test_charts_are_saved_as_svg_and_png(visit):
    page = visit(report())
    for name in ("curves", "step sizes", "drift", "clients and classes"):
        tree = ET.fromstring(downloaded(page, f"save the {name} as SVG"))
        assert tree.tag.endswith("svg")
        assert [node for node in tree.iter() if node.get("class")] == []
        assert ("Scaffold, lr 0.3" in tree.itertext()) == (name == "curves")  # with a legend
    for name in ("curves", "drift"):
        assert downloaded(page, f"save the {name} as PNG").startswith(b"\x89PNG")


# ---- odd data


def test_labels_with_markup_are_text(visit):
    data = report(title=EVIL, notes=[EVIL])
    for group in data["groups"]:
        group.update(label=f"{EVIL} {group['method']}", settings={EVIL: EVIL, "x": group["method"]})
        for run in group["runs"]:
            run.update(folder=EVIL, status="diverged" if run["seed"] else EVIL)
    for entry in (*data["axes"], *data["metrics"], *data["sensitivity"], *data["drift"]):
        entry["label"] = EVIL
    data["splits"][0].update(label=EVIL, sentence=EVIL, more=EVIL, classes=[EVIL] * 10)
    data["drift"][0]["layers"] = [EVIL] * 4
    data["citations"][0].update(short=EVIL, bibtex=EVIL)
    page = visit(data)
    page.locator("summary").first.click()
    page.locator("#curves-chart svg").hover()
    assert page.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None
    assert EVIL in page.inner_text("h1")
    assert EVIL in page.inner_text("#legend")


@pytest.mark.parametrize("data", [{}, {"groups": []}, {"title": "x", "groups": None, "drift": []}])
def test_nothing_at_all_is_said(visit, data):
    page = visit(data)
    assert page.locator("main > section:visible").count() == 0
    assert "nothing to show yet" in page.inner_text("#empty")


def test_one_run_with_one_row(visit):
    run = {"seed": 0, "status": "running", "columns": {"round": [0], "accuracy": [0.1]}}
    page = visit(report(groups=[{"label": "only", "runs": [run]}], drift=[], splits=[], notes=[]))
    assert page.locator("#curves-chart .line.mean").count() == 1
    assert table(page)["only"]["round"] == "0+"
    assert table(page)["only"]["final"] == "0.1"
    page.check("#logx")
    assert "Nothing to draw" in page.inner_text("#curves-chart")
    downloaded(page, "save the curves as CSV")
    page.get_by_role("button", name="save the curves as PNG").click()


def test_missing_numbers_and_columns(visit):
    nan = float("nan")
    runs = [
        {"seed": 0, "columns": {"round": [0, 1, 2, 3], "accuracy": [nan, 0.5, nan, 0.95]}},
        {"seed": 1, "columns": {"round": [0, 1], "accuracy": [nan, math.inf]}, "status": "diverged"},
        {"seed": 2, "columns": {}},
        {"seed": 3},
    ]  # fmt: skip
    page = visit(report(groups=[{"label": "a", "runs": runs}, {"label": "b", "runs": []}]))
    assert list(curves(page)["a"]) == [1, 3]
    assert "No values here: b." in page.inner_text("#curves-words")
    assert table(page)["a"]["round"] == "diverged (1 of 4 seeds)"
    assert table(page)["b"]["best"] == "–"


@pytest.mark.parametrize(
    "hash",
    ["#metric=%ZZ&axis=<b>&zoom=a~b&hide=99,x&sort=;&drift=9&split=-1&smooth=3&band=x&value=y&goal=z",
     "#zoom=5~1&logy=2&sort=round", "#%%%&&==", "#zoom=1e9~2e9"],
)  # fmt: skip
def test_junk_in_the_address_does_no_harm(visit, hash):
    page = visit(report(), hash=hash)
    assert page.locator("main > section:visible").count() == 9
    assert page.locator("#legend [aria-pressed=true]").count() == 4


def test_twelve_groups_of_ten_thousand_rows_keep_every_spike(visit):
    rng = np.random.default_rng(0)
    rounds = list(range(10_000))
    groups = []
    for g in range(12):
        runs = []
        for seed in range(3):
            accuracy = 0.5 + 0.01 * rng.normal(size=10_000)
            accuracy[4321] = 3.0 if g == 5 else 0.5
            made = {"round": rounds, "accuracy": np.round(accuracy, 4).tolist()}
            runs.append({"seed": seed, "status": "finished", "columns": made})
        groups.append({"label": f"method {g}", "runs": runs})
    page = visit(report(groups=groups, target=None))
    paths = page.locator("#curves-chart .line.mean")
    assert paths.count() == 12
    assert paths.nth(10).get_attribute("stroke-dasharray")
    drawn = paths.nth(5).get_attribute("d")
    assert drawn.count("L") < 5000
    heights = [float(point.split()[1]) for point in re.split("[ML]", drawn) if point]
    assert max(heights) - min(heights) > 300  # the spike goes through the whole chart
    page.select_option("#smooth", "20")
    page.check("#seeds")
    assert page.locator("#curves-chart .line.seed").count() == 36


# ---- themes, sizes, paper

CONTRAST = """(selectors) => {
  const light = (rgb) => rgb.map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const rgba = (text) => text.match(/[\\d.]+/g).map(Number);
  return selectors.map((selector) => {
    const node = document.querySelector(selector);
    const style = getComputedStyle(node);
    const ink = rgba(node.closest("svg[role=img]") ? style.fill : style.color);
    let behind = node;
    const seen = (at) => rgba(getComputedStyle(at).backgroundColor)[3] !== 0;
    while (behind.parentElement && !seen(behind)) behind = behind.parentElement;
    const [a, b] = [ink, rgba(getComputedStyle(behind).backgroundColor)].map((c) => light(c.slice(0, 3)));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
}"""
READ = [
    "h1", "#facts", "h2", "#metric", ".field span", "#legend button", "#curves-words", "td",
    "td.missed", "td small", "thead button", "#theme", ".save button", ".chip.running",
    ".chip.diverged", ".chip.finished", ".chip small", "summary", "#curves-chart .axes text",
    "#curves-chart .name", "footer",
]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_themes(visit, scheme):
    page = visit(report(), scheme=scheme)
    ratios = dict(zip(READ, page.evaluate(CONTRAST, READ), strict=True))
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}
    lines = page.evaluate(CONTRAST, [f"#legend .s{k}" for k in range(4)])
    assert min(lines) > 2


def test_the_theme_follows_the_system_until_chosen_and_is_remembered(visit):
    page = visit(report(), scheme="dark")
    theme = "document.documentElement.dataset.theme"
    heat = page.get_attribute("#drift-chart image", "href")
    assert page.evaluate(theme) == "dark"
    page.click("#theme")
    assert (page.inner_text("#theme"), page.evaluate(theme)) == ("light", "light")
    assert page.get_attribute("#drift-chart image", "href") != heat
    page.reload()
    assert page.evaluate(theme) == "light"
    page.click("#theme")
    page.click("#theme")
    assert (page.inner_text("#theme"), page.evaluate(theme)) == ("auto", "dark")
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_the_page_works_without_storage_and_history(visit):
    setup = """
      Object.defineProperty(window, "localStorage", { get() { throw new Error("no"); } });
      history.replaceState = () => { throw new Error("no"); };
    """
    page = visit(report(), setup=setup)
    page.click("#theme")
    page.click("#theme")
    page.check("#logx")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  const inside = (node) => node.closest(".scroll, pre, .away");
  return [...document.querySelectorAll("body *")]
    .filter((node) => !inside(node) && !node.closest("clipPath") && node.getBoundingClientRect().right > width + 1)
    .map((node) => node.tagName + "#" + node.id + "." + node.getAttribute("class"));
}"""


@pytest.mark.parametrize("width", [360, 390, 760, 1200])
def test_nothing_overflows(visit, width):
    data = report()
    data["groups"][0]["label"] = "a_method_with_a_very_long_name_" * 4
    data["metrics"][0]["label"] = "accuracy of the averaged model on held-out data of all clients"
    page = visit(data, width=width)
    page.evaluate("for (const node of document.querySelectorAll('details')) node.open = true")
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0
    assert page.evaluate(OVERFLOW) == []
    if width < 600:
        controls = page.locator("button:visible, select:visible, .tick:visible")
        heights = controls.evaluate_all("(all) => all.map((one) => one.offsetHeight)")
        assert min(heights) >= 40


def test_on_paper_it_is_light_without_buttons_and_whole(visit):
    page = visit(report(), width=794, scheme="dark", hash="#hide=0")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.locator(".switches:visible, .save:visible, #theme:visible").count() == 0
    assert texts(page, "#legend button:visible") == [f"{m}, lr 0.3" for m in list(METHODS)[1:]]
    assert page.locator("details:visible").count() == 0
    assert page.evaluate(OVERFLOW.replace(".scroll, ", "")) == []
    assert page.pdf(format="A4").startswith(b"%PDF")


# ---- measures


def measured() -> dict[str, Any]:
    """What measures of two of the groups found."""
    rng = np.random.default_rng(1)
    rounds = list(range(0, 61, 10))
    shrinking = np.exp(-np.array(rounds) / 20)
    names = {"√(A − b)": 1.0 + 0 * shrinking, "ζ_max": 2 + shrinking, "‖∇f‖ = √b": 3 * shrinking}
    tables = 1 - 0.3 * rng.random((2, 6, 6))
    tables = (tables + tables.transpose(0, 2, 1)) / 2
    tables[:, range(6), range(6)] = 1
    kappas = [0.05, 0.1, 0.3]
    bound = 5 * np.exp(-np.arange(1, 61) / 30)
    both = ("FedAvg, lr 0.3", "Scaffold, lr 0.3")
    return {
        "heterogeneity": [
            {"label": label, "seeds": 3, "rounds": rounds,
             "lines": [{"key": k, "label": k, "values": v.tolist()} for k, v in names.items()]}
            for label in both
        ],
        "pairs": [
            {"label": label, "clients": [0, 3, 4, 7, 8, 9], "layers": ["conv", "head"],
             "values": tables.tolist(), "where": "round 60", "seeds": 3, "seed": 1, "more": "the first 6 of 40 clients"}
            for label in both
        ],
        "bounds": [
            {"label": both[1], "theorem": "Theorem VII", "of": "E f(x̄) − f*",
             "rounds": list(range(1, 61)), "bound": bound.tolist(), "mean": (bound / 4).tolist(),
             "error": (bound / 10).tolist(), "broken": [], "notes": []},
        ],
        "coverage": [
            {"label": label, "kind": kind, "kappas": kappas, "coverage": [0.96, 0.91, 0.7],
             "size": [1.8, 1.3, 0.8], "empty": [0, 0, 0.2], "accuracy": 0.88, "notes": ["one half"],
             "by_client": (1 - rng.random((3, 8)) / 3).tolist(), "calibration": 90, "test": 90}
            for label in both for kind in ("threshold", "aps")
        ],
    }  # fmt: skip


def test_measures_have_panels_with_a_sentence_each(visit):
    data = report(**measured())
    page = visit(data)
    assert page.locator("main > section:visible").count() == 13
    assert texts(page, "#hetero-legend > span") == ["√(A − b)", "ζ_max", "‖∇f‖ = √b"]
    assert page.locator("#hetero-chart .line.mean").count() == 3
    assert "clients pull apart" in page.inner_text("#hetero-words")
    assert page.locator("#pairs-chart .pair-cell").count() == 36
    assert texts(page, "#layer option") == ["mean of all layers", "conv", "head"]
    words = page.inner_text("#pairs-words")
    assert words.endswith("Shown: the first 6 of 40 clients. Shown for seed 1.")
    page.select_option("#layer", "2")
    page.locator("#pairs-chart").scroll_into_view_if_needed()
    page.locator("#pairs-chart svg").hover(position={"x": 44 + 34 + 10, "y": 52 + 10})
    expect(page.locator("#note")).to_be_visible()
    value = data["pairs"][0]["values"][1][0][1]
    assert re.search(rf"clients 0 and 3\s+head: {value:.4}", page.inner_text("#note"))
    assert page.locator("#bound-chart .line").count() == 3
    assert "at least 4 times as large" in page.inner_text("#bound-words")
    assert page.locator("#sets-chart svg").count() == 2
    assert page.locator("#sets-chart .ring").count() == 2
    assert page.input_value("#kappa") == "0.1"
    assert "coverage 0.91 with 1.3 labels" in page.inner_text("#sets-words")
    page.select_option("#kappa", "0.3")
    assert "coverage 0.7 with 0.8 labels" in page.inner_text("#sets-words")
    page.select_option("#sets-kind", "aps")
    again = visit(data, hash=page.evaluate("location.hash"))
    for name in ("layer", "kappa", "sets-kind"):
        assert again.input_value(f"#{name}") == page.input_value(f"#{name}")
    drawn = downloaded(page, "save the heterogeneity as SVG").decode()
    assert "ζ_max" in drawn


def test_a_bound_without_its_conditions_promises_nothing(visit):
    found = measured()
    found["bounds"][0].update(broken=["η̃ is at most 1/(81β): 2 ≤ 1 does not hold"], mean=None)
    words = visit(report(**found)).inner_text("#bound-words")
    assert "it promises nothing here: η̃ is at most 1/(81β): 2 ≤ 1 does not hold." in words


def test_measures_with_markup_and_junk_are_text_or_nothing(visit):
    found = measured()
    for part in found.values():
        for one in part:
            one.update(label=EVIL, more=EVIL, notes=[EVIL], theorem=EVIL, of=EVIL, where=EVIL)
    for line in found["heterogeneity"][0]["lines"]:
        line["label"] = EVIL
    found["pairs"][0]["layers"] = [EVIL, EVIL]
    found["bounds"][0]["broken"] = [EVIL]
    page = visit(report(**found))
    page.locator("#pairs-chart").scroll_into_view_if_needed()
    page.locator("#pairs-chart svg").hover(position={"x": 60, "y": 70})
    assert page.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None
    assert EVIL in page.inner_text("#hetero-legend")
    junk = {"heterogeneity": [{}, {"rounds": [1], "lines": [{}]}], "pairs": [{"clients": [1, 2]}],
            "bounds": [{"rounds": [1], "bound": [None]}], "coverage": [None, {"kappas": [0.1]}]}  # fmt: skip
    page = visit(report(**junk), hash="#layer=x&kappa=y&sets=z&hetero=9&bound=-1")
    assert page.locator("main > section:visible").count() == 9


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_measures_fit_and_follow_the_theme(visit, width, scheme):
    found = measured()
    found["pairs"][0].update(clients=list(range(20)), values=[[[0.5] * 20] * 20] * 2)
    page = visit(report(**found), width=width, scheme=scheme)
    assert page.evaluate(OVERFLOW) == []
    cell = page.locator("#pairs-chart .pair-cell").nth(1)
    before = cell.get_attribute("fill")
    page.click("#theme")
    page.click("#theme" if scheme == "light" else "#title")
    assert cell.get_attribute("fill") != before


# ---- live


class Source:
    """Data that a test changes while the page looks."""

    def __init__(self) -> None:
        self.data, self.broken, self.calls = report(), False, 0
        self.lock = threading.Lock()

    def __call__(self) -> dict[str, Any]:
        with self.lock:
            self.calls += 1
            if self.broken:
                raise FairleadError("a run folder is being written")
            return self.data


def test_the_live_page_follows_and_survives(visit):
    source = Source()
    server = watch.Server(source).start()
    try:
        page = visit(server.url, hash="#hide=0")
        assert re.match(r"live · updated \d+ s ago", page.inner_text("#live"))
        page.check("#logx")
        page.get_by_text("12 runs and their folders").click()
        page.evaluate("window.scrollTo(0, 300)")
        with source.lock:
            data = report(title="Fresh data")
            data["groups"][3]["runs"][1]["status"] = "finished"
            source.data = data
        expect(page).to_have_title("Fresh data")
        assert texts(page, "#chips li")[-1] == "11 finished"
        assert page.is_checked("#logx")
        assert page.evaluate("window.scrollY") == 300
        assert page.locator("#legend [aria-pressed=false]").count() == 1
        assert page.locator("#runs details[open]").count() == 1
        source.broken = True
        expect(page.locator("#live")).to_have_class("waiting")
        assert "a run folder is being written" in page.inner_text("#live")
        assert page.locator("#curves-chart .line.mean").count() == 3
        source.broken = False
        expect(page.locator("#live")).to_have_class("on")
    finally:
        server.stop()
    expect(page.locator("#live")).to_have_class("lost")
    assert "connection lost" in page.inner_text("#live")
    with watch.Server(source, port=server.port):
        expect(page.locator("#live")).to_have_class("on")


def test_a_live_page_that_starts_with_nothing_fills(visit):
    source = Source()
    source.data = {}
    with watch.Server(source) as server:
        page = visit(server.url)
        assert page.is_visible("#empty")
        source.data = report()
        page.wait_for_selector("#curves-chart svg")
        assert page.is_hidden("#empty")
