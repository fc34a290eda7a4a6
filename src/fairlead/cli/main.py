"""The commands and their flags. What they do is imported when one is called, so that help needs no torch."""

from __future__ import annotations

from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.common import (
    COLUMNS,
    RESULTS,
    TRAIN,
    app,
    errors_printed,
    examples,
    group_examples,
    out,
    say_loading,
)
from fairlead.cli.flags import Flags, settings_command
from fairlead.cli.settings import METHOD_SETTINGS, OPTIONS


@settings_command(
    "run",
    leave_out={"methods", "grid", "seeds", "x"},
    cls=examples(
        "fairlead run --method scaffold --split dirichlet --split-value 0.1",
        "fairlead run --task theorem2 --method scaffold --rounds 100 --out out/run",
        "fairlead run --method fedavg:momentum=0.9 --cohort 5 --epochs 2",
        "fairlead run --method my.py:MyMethod --model my.py:net",
        "fairlead init && fairlead run --config settings.toml",
    ),
)
def run(s: dict[str, Any], own: dict[str, Any]) -> None:
    """Train with one method."""
    from fairlead.cli.commands import run_command

    run_command(s)


@settings_command(
    "compare",
    leave_out={"method", "seed", "checkpoint_every", "track", "timeout"},
    cls=examples(
        "fairlead compare",
        "fairlead compare --methods fedavg,scaffold --cohort 0.4 --out out/compare",
        "fairlead compare --methods fedavg,fedavg:momentum=0.9 --grid 1,0.3,0.1",
        'fairlead compare --valid 0.2 --target "accuracy>0.9"',
        "fairlead compare --methods scaffold,my.py:MyMethod --lr 0.5 --seeds 1",
    ),
)
def compare(s: dict[str, Any], own: dict[str, Any]) -> None:
    """Compare methods, each tuned over the same step sizes.

    Without arguments: a demo on digits. Given again with the same --out, it does what is missing."""
    from fairlead.cli.commands import compare_command

    compare_command(s)


SEARCH: Flags = {
    "space": (str, "other settings: mu=0.01|0.1|1,server_lr=0.1:3:log; lr=0.001:1:log for a range"),
    "by": (str, "the objective: rounds or bits to the target, final or best metric"),
    "papers": (bool, "the papers' protocol: only step sizes, the same for all methods, by rounds"),
    "sampler": (str, "grid, tpe or random; by default tpe for a range, else grid"),
    "trials": (int, "number of trials for tpe or random [20]"),
    "sampler_seed": (int, "seed of tpe and random [0]"),
    "prune": (bool, "stop trials that can no longer win"),
    "together": (bool, "run full trials at once, without pruning"),
    "storage": (str, "an Optuna database URL, which several machines can share"),
}


@settings_command(
    "tune",
    leave_out={
        "method",
        "seed",
        "checkpoint_every",
        "track",
        "overwrite",
        "timeout",
        "workers",
        "x",
    },
    cls=examples(
        "fairlead tune --methods fedavg,scaffold --target accuracy=0.9 --out out/tune",
        'fairlead tune --methods fedprox --space "mu=0.01|0.1|1" --valid 0.2',
        "fairlead tune --papers --target accuracy=0.9",
    ),
    more=SEARCH,
    panel="Search",
)
def tune(s: dict[str, Any], own: dict[str, Any]) -> None:
    """Find the best step size and other settings of each method.

    Given again with the same --out, it continues."""
    from fairlead.cli.tuning import tune_command

    tune_command(s, own)


DIAGNOSIS: Flags = {
    "budget": (float, "gradients to spend, or up to 1 their share of the planned run [0.1]"),
    "by": (str, "what to save: rounds, bits or hours [rounds, or hours with --link]"),
    "link": (
        str,
        "the slowest client's link as down/up/latency: 10Mbit/1Mbit/50ms; /0.2s adds a local step",
    ),
}


@settings_command(
    "diagnose",
    leave_out={
        "method", "methods", "lr", "grid", "schedule", *METHOD_SETTINGS, "set", "seed", "seeds", "checkpoint_every",
        "track", "overwrite", "timeout", "workers", "x", "figure", "eval_every", "drift", "measures", "every", "average",
        "per_client", "personal_steps",
    },
    cls=examples(
        "fairlead diagnose --rounds 200 --out out/advice",
        "fairlead diagnose --task a9a --cohort 5 --rounds 300 --steps 10",
        'fairlead diagnose --target "accuracy>0.9" --link 10Mbit/1Mbit/50ms',
        "fairlead run --config out/advice/advice.toml",
    ),
    more=DIAGNOSIS,
    panel="Diagnosis",
)  # fmt: skip
def diagnose(s: dict[str, Any], own: dict[str, Any]) -> None:
    """Recommend a method, local steps and a step size for a task.

    Answers nine questions with ranges, at a small part of the cost of the planned run, and writes advice.toml."""
    from fairlead.cli.diagnosing import diagnose_command

    diagnose_command(s, own)


MEASURED: Flags = {
    "measures": (str, "what to measure, comma-separated: dissimilarity, curvature, noise; of a method's next round "
                      "local, alpha, cka, compression, control_lag; conformal sets threshold, aps, raps; of a "
                      "run with a known optimum bound"),
    "use_clients": (int, "how many clients to use; all by default"),
    "samples": (int, "how many samples of each client to use; all by default"),
    "products": (int, "Hessian-vector products per spectrum [20]"),
    "kappa": (float, "the share of errors that prediction sets are allowed [0.1]"),
    "as_json": (bool, "print JSON"),
}  # fmt: skip
MEASURED_TASK = ("task", "task_set", "split", "split_value", "data", "clients", "model", "valid", "weighting", "seed",
                 "device", "dtype", "engine", "method", "lr", "batch_size", "steps", "epochs", "compressor", "layers",
                 "set")  # fmt: skip


def measure(folder: Path | None, **given: Any) -> None:
    """Measure heterogeneity, curvature, noise, drift and prediction sets.

    Of a finished run, if its folder is given, or of a task at its starting point."""
    own = {name: given.pop(name) for name in MEASURED}
    with errors_printed():
        say_loading("measure")
        from fairlead.cli.measuring import measure_command

        measure_command(folder, own, given)


def _measure_flags() -> list[Parameter]:
    """The folder, and the flags of the measures and of a task's settings."""
    argument = Annotated[Path | None, typer.Argument(help="the --out folder of a run")]
    flags = [
        Parameter("folder", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=argument)
    ]
    for name, (kind, text) in {**MEASURED, **{n: OPTIONS[n] for n in MEASURED_TASK}}.items():
        word = "--json" if name == "as_json" else f"--{name.replace('_', '-')}"
        hint = Annotated[kind | None, typer.Option(word, help=text, show_default=False)]
        flags.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint))
    return flags


measure.__dict__["__signature__"] = Signature(_measure_flags())
measure.__annotations__ = {flag.name: flag.annotation for flag in _measure_flags()}
app.command(
    "measure",
    rich_help_panel=RESULTS,
    cls=examples(
        "fairlead measure out/run",
        "fairlead measure out/run --measures curvature,cka,aps --samples 64",
        "fairlead measure out/run --measures bound,aps && fairlead report out/run",
        "fairlead measure --task digits --split dirichlet --split-value 0.1",
    ),
)(measure)


@app.command(
    "resume",
    rich_help_panel=TRAIN,
    cls=examples("fairlead resume out/run", "fairlead resume out/run --rounds 200"),
)
def resume(
    folder: Annotated[Path, typer.Argument(help="the --out folder of the run")],
    rounds: Annotated[int | None, typer.Option("--rounds", help="train to this round")] = None,
) -> None:
    """Resume a stopped or killed run from its latest checkpoint.

    The result is bitwise the same as without the stop. Without a checkpoint the run starts again; a finished run
    is left as it is."""
    say_loading(f"resume {folder}")
    from fairlead.cli.commands import resume_command

    with errors_printed():
        resume_command(folder, rounds)


@app.command(
    "reproduce",
    rich_help_panel=TRAIN,
    cls=examples("fairlead reproduce list", "fairlead reproduce saddle-fig2 --quick"),
)
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="experiments; or list, all, or page (writes docs/results.md and docs/papers.md)"
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="a reduced version, a few minutes")
    ] = False,
    seeds: Annotated[int | None, typer.Option("--seeds", help="seeds per setting")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda")] = "cpu",
    budget: Annotated[
        float | None, typer.Option("--budget", help="seconds after which no further case is begun")
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", help="part of the name of the cases")
    ] = None,
    reading: Annotated[
        list[str] | None, typer.Option("--reading", help="how to read an open point, as name=value")
    ] = None,
    folder: Annotated[
        Path, typer.Option("--out", help="folder for runs, tables and figures")
    ] = Path("out/reproduce"),
    results: Annotated[
        Path | None,
        typer.Option("--results", help="folder of finished cases to go on from and add to"),
    ] = None,
    figure: Annotated[str, typer.Option("--figure", help="png, pdf or svg")] = "png",
    jobs: Annotated[int, typer.Option("--jobs", help="processes that share the cases")] = 1,
) -> None:
    """Rerun the papers' experiments: our results next to their claims, and the figures.

    Given again, the command does what is missing; given twice at the same time, both share the work."""
    say_loading("reproduce")
    from fairlead.cli.reproduce import reproduce_command

    with errors_printed():
        reproduce_command(
            names, quick, seeds, device, budget, only, reading, folder, results, figure, jobs
        )


runs_app = typer.Typer(
    cls=group_examples("fairlead runs list out", "fairlead runs diff out/one out/two"),
    help="Run folders: list, show, diff, rm.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(runs_app, name="runs", rich_help_panel=RESULTS)

Json = Annotated[bool, typer.Option("--json", help="as JSON")]
Csv = Annotated[bool, typer.Option("--csv", help="as CSV")]
RunFolder = Annotated[Path, typer.Argument(help="a run folder")]


@runs_app.command(
    "list", cls=examples("fairlead runs list out", "fairlead runs list out --sort value --json")
)
def runs_list(
    folders: Annotated[list[Path] | None, typer.Argument(help="folders to search")] = None,
    sort: Annotated[str, typer.Option(help=f"sort by one of {', '.join(COLUMNS)}")] = "folder",
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """List all runs in the folders: what they are, their progress and how they ended."""
    from fairlead.cli.runs import list_command

    with errors_printed():
        list_command(folders or [Path()], sort, as_json, as_csv)


@runs_app.command(
    "show", cls=examples("fairlead runs show out/run", "fairlead runs show out/run --csv")
)
def runs_show(
    folder: RunFolder,
    history: Annotated[bool, typer.Option("--history", help="the whole history")] = False,
    as_csv: Csv = False,
) -> None:
    """Show one run: settings, parts, metrics, checkpoints, and what to cite."""
    from fairlead.cli.runs import show_command

    with errors_printed():
        show_command(folder, history, as_csv)


@runs_app.command("diff", cls=examples("fairlead runs diff out/one out/two"))
def runs_diff(
    one: RunFolder, two: Annotated[Path, typer.Argument(help="another run folder")]
) -> None:
    """Show how two runs differ: settings, last values, and the first round with different rows.

    The exit code is 1 if rows differ."""
    from fairlead.cli.runs import diff_command

    with errors_printed():
        diff_command(one, two)


@runs_app.command("rm", cls=examples("fairlead runs rm out/run"))
def runs_rm(
    folders: Annotated[list[Path], typer.Argument(help="run folders")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Delete runs: their own files and checkpoints, and folders left empty."""
    from fairlead.cli.runs import rm_command

    with errors_printed():
        rm_command(folders, yes)


Folders = Annotated[list[Path], typer.Argument(help="run folders, or folders that contain them")]
Title = Annotated[str | None, typer.Option("--title", help="the page's title")]


@app.command(
    "report",
    rich_help_panel=RESULTS,
    cls=examples("fairlead report out/compare", "fairlead report out --out all.html --figure pdf"),
)
def report_command(
    folders: Folders,
    title: Title = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", help="the page; by default report.html in the first folder"),
    ] = None,
    figure: Annotated[
        str | None, typer.Option("--figure", help="also save the curves as pdf, svg or png")
    ] = None,
) -> None:
    """Write an HTML report of runs: curves over seeds, cost to the target, split, drift, step sizes."""
    from fairlead.figures.plots import stored_figure
    from fairlead.figures.style import figure_path
    from fairlead.report import html
    from fairlead.report.gather import gather, grouped, readable, shown

    with errors_printed():
        page = file or folders[0] / "report.html"
        data = gather(folders, title)
        picture = None if figure is None else figure_path(page.parent, page.stem, figure)
        html.write(data, page)
        if picture is not None:
            stored_figure(grouped(readable(shown(folders))[0]), picture)
        written = [page] if picture is None else [page, picture]
        out.print(f"written: {', '.join(map(str, written))}", highlight=False, soft_wrap=True)


@app.command(
    "watch",
    rich_help_panel=RESULTS,
    cls=examples("fairlead watch out", "fairlead watch out --port 0"),
)
def watch_command(
    folders: Folders,
    title: Title = None,
    host: Annotated[str, typer.Option("--host", help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="the port; 0 picks a free one")] = 8765,
) -> None:
    """Serve the same page, live, while runs are in progress; stop with Ctrl-C."""
    from fairlead.report import watch
    from fairlead.report.gather import gather

    def on_ready(url: str) -> None:
        out.print(f"watching on {url} (stop with Ctrl-C)", highlight=False)

    with errors_printed():
        watch.serve(partial(gather, folders, title), host, port, on_ready)
