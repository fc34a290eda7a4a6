"""The settings of runs and comparisons: defaults, flags, and TOML files. Importing it needs no torch."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.cli.names import absolute, each_method, own_file, pairs, same_name
from fairlead.errors import FairleadError, unknown

if TYPE_CHECKING:  # they need torch, and help should not wait for it
    from fairlead.data.batches import Geometric
    from fairlead.data.sampling import Cohorts
    from fairlead.engine.processes.workers import Workers
    from fairlead.task.metrics import Better
    from fairlead.task.per_client import PerClient
    from fairlead.task.task import Task

METHOD_SETTINGS = ("server_lr", "server", "mu", "option", "warm_start", "compressor", "momentum",
                   "momentum_reset", "local", "aggregate", "beta", "alpha", "damping", "first_batch", "gamma", "layers")  # fmt: skip

DEFAULTS: dict[str, Any] = {
    "task": "digits", "split": "similarity", "split_value": None, "clients": None, "model": "softmax",
    "rounds": 60, "cohort": None, "batch_size": 0.2, "steps": None, "epochs": None, "drop_last": False, "replacement": False, "lr": None,
    "grid": "10,3,1,0.3,0.1", "schedule": None, "weighting": "uniform", "dropout": 0.0, "seed": 0,
    "seeds": 3, "target": None, "valid": None, "engine": "auto", "device": "cpu", "workers": "auto", "memories": "auto",
    "precision": "auto", "compile": "auto", "dtype": None,
    "eval_every": 1, "objective": True, "drift": False, "measures": None, "every": None, "average": None, "per_client": False, "personal_steps": 0, "checkpoint_every": None, "track": None,
    "figure": "png", "overwrite": False, "out": None, "timeout": 600.0, "methods": "fedsgd,fedavg,fedprox,scaffold", "method": "scaffold",
    "x": "round", "set": None, "data": None, "task_set": None, **dict.fromkeys(METHOD_SETTINGS),
}  # fmt: skip

AXES = ("round", "bits", "bits_up", "bits_down", "nominal_up", "gradients",
        "communications", "exchanges", "seconds")  # fmt: skip

WORDS = (
    "task",
    "split",
    "model",
    "compressor",
    "schedule",
    "method",
    "methods",
    "server",
    "local",
    "aggregate",
    "precision",
    "task_set",
    "track",
    "figure",
    "measures",
)
KINDS: dict[Any, Any] = {
    int: int,
    float: float | int,
    bool: bool,
    str: str | int | float,
    Path: str,
}
NAMES = (
    "task", "split", "model", "compressor", "schedule", "server", "option", "cohort", "steps",
    "weighting", "engine", "device", "workers", "memories", "precision", "compile", "dtype", "figure", "x",
)  # fmt: skip
"""Settings with names that are taken in any case; those of methods are looked up later."""
LISTS: dict[str, type] = {"methods": list, "grid": list, "target": dict}

OPTIONS: dict[str, tuple[Any, str]] = {
    "methods": (
        str,
        "the methods, comma-separated; with settings of their own as fedavg:momentum=0.9",
    ),
    "method": (
        str,
        "the method; see `fairlead list`; fedavg:momentum=0.9 with settings, my.py:MyMethod from a file",
    ),
    "task": (str, "what to train; see `fairlead list`"),
    "task_set": (str, "the task's own settings, comma-separated: s=10,scaling=printed"),
    "split": (
        str,
        "iid, similarity, dirichlet, dirichlet-balanced, dirichlet-sliced, shards, quantity or by-id",
    ),
    "split_value": (
        float,
        "percent for similarity, alpha for Dirichlet or quantity, shards per client",
    ),
    "data": (Path, "folder with data sets, instead of $FAIRLEAD_DATA and downloads"),
    "clients": (int, "number of clients"),
    "model": (
        str,
        "softmax, mlp (mlp:600x600 for these widths), cnn, vgg11, resnet8 (with -bn for BatchNorm); "
        "gru or transformer for text; my.py:net from a file",
    ),
    "rounds": (int, "communication rounds"),
    "cohort": (
        str,
        "clients per round: a number or a fraction, all-first:25 for all in the first round, always:19+1 for "
        "client 19 and one other; all by default",
    ),
    "batch_size": (str, "samples per step: a number or a fraction of the client's data"),
    "steps": (
        str,
        "local steps per round: a number, or random:0.05 to synchronize with that probability",
    ),
    "epochs": (int, "local epochs per round; 1 by default"),
    "drop_last": (bool, "skip an epoch's short last batch"),
    "replacement": (bool, "draw every batch independently"),
    "lr": (float, "local step size (compare: instead of a grid)"),
    "grid": (str, "step sizes to try for every method"),
    "schedule": (str, "exponential:0.99, cosine, multistep:50,80 or inverse-sqrt"),
    "server_lr": (float, "the server's step size"),
    "compressor": (str, "for uploads: qsgd:2, qsgd:2:elias, topk:0.01:ef, randk:0.1, bfloat16"),
    "momentum": (float, "momentum of local steps, if the method has it"),
    "momentum_reset": (bool, "start local momentum anew every round; else clients keep it"),
    "local": (
        str,
        "the clients' optimizer: sgd, adam, adamw or rmsprop, with its settings: adam:beta2=0.99,clip=1,keep=true; "
        "its step size is --lr",
    ),
    "aggregate": (
        str,
        "instead of the mean of the clients' steps: median, trimmed-mean:share=0.2 or "
        "clipped-mean:norm=1,noise=0.5",
    ),
    "beta": (
        str,
        "momentum of FedGLOMO, Mime and SCAFFOLD-M; FedGLOMO's may be a schedule, 0.2:exponential:0.99",
    ),
    "alpha": (float, "FedDyn's regularization"),
    "damping": (float, "damping of FedLOMO's and FedGLOMO's local momentum"),
    "first_batch": (
        int,
        "samples in FedLOMO's and FedGLOMO's first gradient, and in Mime's at the model; all by default",
    ),
    "gamma": (float, "FedCOMGATE's server step"),
    "layers": (
        str,
        "layers FedPVR corrects: -3 for the last three, from:16 for the parameter tensors from number 16 on, "
        "or comma-separated names",
    ),
    "set": (str, "the method's other settings, comma-separated: a=0.3,p=0.2,tau=0.01"),
    "x": (
        str,
        "the figure's x axis: round, bits, bits_up, gradients, communications (as in the paper), exchanges or seconds",
    ),
    "server": (
        str,
        "the server's optimizer: sgd, momentum (momentum:0.7 for 0.7), adam or adagrad",
    ),
    "mu": (float, "FedProx's proximal weight"),
    "option": (str, "the option of SCAFFOLD and FedPVR, I or II"),
    "warm_start": (bool, "start SCAFFOLD and FedPVR from the clients' gradients"),
    "weighting": (str, "uniform or size"),
    "dropout": (float, "probability that a sampled client drops out"),
    "target": (str, 'metric value to reach: accuracy=0.9, "accuracy>0.9" or "loss<0.1"'),
    "valid": (float, "share of every client's data to hold out, on which settings are then chosen"),
    "seed": (int, "the random seed"),
    "seeds": (int, "number of seeds"),
    "engine": (str, "auto, vmap, loop or debug"),
    "device": (str, "cpu or cuda"),
    "workers": (
        str,
        "processes that share a round's clients on a CPU: a number, or auto: one per core if a round is enough work, otherwise one",
    ),
    "memories": (str, "where client state is stored: auto, device, host or disk"),
    "precision": (str, "of local gradients: auto, float32, tf32 or bfloat16"),
    "compile": (str, "compile exchanges on a GPU: auto, true, false or tuned"),
    "timeout": (float, "seconds after which an unresponsive process counts as lost"),
    "dtype": (str, "float32 or float64; the task's own by default"),
    "eval_every": (int, "rounds between evaluations"),
    "objective": (bool, "whether evaluations compute the loss on all training data"),
    "drift": (bool, "record the drift diversity of every layer at evaluations"),
    "measures": (
        str,
        "what to measure on clients as the run goes on, comma-separated: dissimilarity, curvature, noise, local, "
        "alpha, cka, compression, control_lag, client_drift",
    ),
    "every": (int, "rounds between measures, a multiple of eval-every"),
    "average": (
        str,
        "also record the loss of the mean iterate: uniform, or the decay of its weights",
    ),
    "per_client": (bool, "record the metrics of every client on its own test data"),
    "personal_steps": (int, "local steps before clients are tested again, as personalised models"),
    "config": (Path, "TOML file with settings; flags take precedence"),
    "checkpoint_every": (
        int,
        "rounds between checkpoints in the --out folder, besides those after 30 s and every ten minutes",
    ),
    "track": (str, "also log to tensorboard, wandb:PROJECT or mlflow:URI, comma-separated"),
    "figure": (str, "figure format: png, pdf or svg"),
    "overwrite": (bool, "start anew: replace the runs in the --out folder"),
    "out": (Path, "folder for settings, history, checkpoints, table and figure"),
}


def chosen(given: dict[str, Any], config: Path | None) -> dict[str, Any]:
    """The settings in the TOML file and the flags, which take precedence."""
    found = {} if config is None else _from_file(config)
    found.update({k: v for k, v in given.items() if v is not None})
    return {key: plain(key, value) for key, value in found.items()}


def plain(key: str, value: Any) -> Any:
    """A setting's value with names in lower case, and methods and models in files with their absolute paths,
    so that a run can be resumed from any folder."""
    if key == "methods":
        texts = [absolute(text) for text in each_method(value)]
        return texts if isinstance(value, list) else ",".join(texts)
    if key == "method" or (key == "model" and own_file(value)):
        return absolute(value)
    if key not in NAMES or not isinstance(value, str):
        return value
    return value.upper() if key == "option" else value.lower()


def read_settings(chosen: dict[str, Any], comparing: bool) -> dict[str, Any]:
    """Merge the defaults, the task's defaults and the chosen settings, in this order. A task's
    target applies only to comparisons, its step size only to runs, which have no grid."""
    from fairlead.task.catalog import TASKS, task_defaults

    name = same_name(chosen.get("task", DEFAULTS["task"]), TASKS)
    own = pairs(chosen.get("task_set", DEFAULTS["task_set"]))
    defaults = task_defaults(name, own)
    lr = defaults.pop("lr_run", 0.1)
    if not comparing:
        defaults.pop("target", None)
        defaults["lr"] = lr
    if chosen.get("epochs") is not None:
        defaults.pop("steps", None)
    return {**DEFAULTS, **defaults, **chosen, "task": name}


def _from_file(config: Path) -> dict[str, Any]:
    try:
        read = tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FairleadError(f"cannot read the settings in {config}: {error}") from error
    found: dict[str, Any] = {}
    for name, value in read.items():
        key = name.replace("-", "_")
        if key not in DEFAULTS:
            raise unknown("setting", name, DEFAULTS)
        kind = OPTIONS[key][0]
        allowed = str if key in WORDS else KINDS[kind]
        if not isinstance(value, allowed) and not isinstance(value, LISTS.get(key, ())):
            raise FairleadError(f"{name} is {value!r} in {config}: it must be a {kind.__name__}")
        found[key] = value
    return found


def number(text: Any) -> Any:
    """A count or a fraction: '20' is a count, '0.2' a fraction."""
    if text is None or isinstance(text, int | float):
        return text
    try:
        return int(text) if str(text).isdigit() else float(text)
    except ValueError as error:
        raise FairleadError(f"'{text}' is not a number: give a count or a fraction") from error


def cohort(text: Any) -> Cohorts:
    """Clients per round: a count, a fraction, all-first:… or always:….

    >>> cohort("0.2"), cohort("all-first:25"), cohort("always:3,19+1")
    (0.2, AllFirst(size=25), Always(ids=(3, 19), more=1))
    """
    from fairlead.data.sampling import AllFirst, Always

    kind, colon, rest = str(text).partition(":")
    if not colon:
        return number(text)
    if kind == "all-first":
        return AllFirst(number(rest))
    if kind != "always":
        raise unknown("kind of cohort", kind, ["all-first", "always"])
    ids, _, more = rest.partition("+")
    try:
        return Always(tuple(int(i) for i in ids.split(",")), int(more or 0))
    except ValueError as error:
        raise FairleadError(f"cohort is '{text}': write for example always:19+1") from error


def numbers(text: Any) -> list[float]:
    parts = text if isinstance(text, list) else [p for p in str(text).split(",") if p]
    try:
        return [float(p) for p in parts]
    except ValueError as error:
        raise FairleadError(
            f"'{text}' is not a list of numbers: write for example 1,0.3,0.1"
        ) from error


SIGNS: dict[str, Better] = {"<": "lower", "≤": "lower", ">": "higher", "≥": "higher"}


def target(text: Any, task: Task) -> dict[str, float] | None:
    """A target such as accuracy=0.9, accuracy>0.9 or loss<0.1; a sign must agree with the metric's direction."""
    from fairlead.task.evaluation import directions

    if not text:
        return None
    name, sign, value = [*re.split(r"([<>]=?|[≤≥=])", str(text), maxsplit=1), "", ""][:3]
    given: dict[str, Any] = text if isinstance(text, dict) else {name.strip(): value}
    try:
        found = {name: float(value) for name, value in given.items()}
    except (TypeError, ValueError) as error:
        raise FairleadError(
            f'cannot parse the target \'{text}\': write accuracy=0.9, or in quotes "accuracy>0.9" or "loss<0.1"'
        ) from error
    for name in found if given is not text else ():
        better = directions(task).get(name)
        if better is not None and SIGNS.get(sign[:1], better) != better:
            right = f"{name}{'<' if better == 'lower' else '>'}{value.strip()}"
            raise FairleadError(
                f"the target is '{text}', but {better} {name} is better: write \"{right}\""
            )
    return found


def steps(text: Any) -> int | Geometric | None:
    """The local steps: a number, or random:p to synchronize with probability p."""
    from fairlead.data.batches import Geometric

    if text is None or isinstance(text, int):
        return text
    kind, _, p = str(text).partition(":")
    try:
        return Geometric(float(p)) if kind == "random" else int(str(text))
    except ValueError as error:
        raise FairleadError(f"steps is '{text}': give a number, or random:0.05") from error


def workers(text: Any) -> Workers:
    """The number of processes, or auto."""
    if text is None or text == "auto":
        return "auto"
    if str(text).isdigit() and int(text) > 0:
        return int(text)
    raise FairleadError(f"workers is '{text}': give a number of processes, or auto")


def execution(s: dict[str, Any]) -> dict[str, Any]:
    """The settings of `Simulate` besides its mode."""
    words = {"auto": "auto", "tuned": "tuned", "true": True, "false": False}
    compile = str(s["compile"]).lower()
    if compile not in words:
        raise unknown("way to compile", compile, words)
    return {"memories": s["memories"], "precision": s["precision"], "compile": words[compile]}


def measures(text: str | None) -> list[Any]:
    """Measures by name, with their default settings."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if not names:
        return []
    from fairlead.measure import PROBES, ClientDrift

    known = {"client_drift": ClientDrift, **PROBES}
    return [known[same_name(name, known)]() for name in names]


def per_client(s: dict[str, Any]) -> PerClient | None:
    """What to record of single clients."""
    from fairlead.task.per_client import PerClient

    return PerClient(s["personal_steps"]) if s["per_client"] or s["personal_steps"] else None


def local(s: dict[str, Any]) -> dict[str, Any]:
    """The settings of `train` that a run and a comparison share."""
    from fairlead.engine.simulate import Simulate

    engine, how = s["engine"], execution(s)
    plain = all(value == "auto" for value in how.values())
    return {
        "cohort": cohort(s["cohort"]), "batch_size": number(s["batch_size"]), "steps": steps(s["steps"]),
        "epochs": s["epochs"], "drop_last": s["drop_last"], "replacement": s["replacement"],
        "weighting": s["weighting"], "dropout": s["dropout"],
        "engine": engine if plain else Simulate(engine, **how),
        "eval_every": s["eval_every"], "objective": s["objective"],
        "drift": s["drift"], "per_client": per_client(s), "measures": measures(s["measures"]),
        "every": s["every"], "average": number(s["average"]) if s["average"] != "uniform" else "uniform",
    }  # fmt: skip
