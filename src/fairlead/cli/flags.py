"""The settings as flags, in panels. It needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

from fairlead.cli.common import TRAIN, app, errors_printed, say_loading
from fairlead.cli.settings import DEFAULTS, METHOD_SETTINGS, OPTIONS, chosen, read_settings

Flags: TypeAlias = dict[str, tuple[Any, str]]

PANELS: dict[str, Collection[str]] = {
    "Task": ("task", "task_set", "data", "split", "split_value", "clients", "model", "valid", "dtype"),
    "Method": ("method", "methods", "lr", "grid", "schedule", *METHOD_SETTINGS, "set"),
    "Rounds and local work": (
        "rounds", "target", "seed", "seeds", "cohort", "steps", "epochs", "batch_size", "drop_last",
        "replacement", "weighting", "dropout",
    ),
    "Engine": ("engine", "device", "workers", "memories", "precision", "compile", "timeout"),
    "Output": (
        "out", "overwrite", "config", "eval_every", "objective", "drift", "measures", "every", "average", "per_client", "personal_steps",
        "checkpoint_every", "track",
        "figure", "x",
    ),
}  # fmt: skip


def in_panels(options: Flags) -> list[tuple[str | None, str]]:
    """The flags in the order of the panels, each with its panel; those of no panel come last."""
    placed = [(panel, key) for panel, keys in PANELS.items() for key in keys if key in options]
    known = {key for _, key in placed}
    return [*placed, *((None, key) for key in options if key not in known)]


def settings_command(
    name: str,
    leave_out: Collection[str],
    cls: type[TyperCommand],
    more: Flags | None = None,
    panel: str | None = None,
) -> Callable[..., Any]:
    """Register a command that has the settings as flags, and `more` of its own in a panel. It is called with
    the merged settings, and with its own that were given."""

    def register(command: Callable[[dict[str, Any], dict[str, Any]], None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            config = given.pop("config")
            given |= {key: False for key in list(given) if given.pop(f"no_{key}", None)}
            own = {key: value for key in more or {} if (value := given.pop(key)) is not None}
            with errors_printed():
                asked = chosen(given, config)
                say_loading(f"{name} on {asked.get('task', DEFAULTS['task'])}")
                command(read_settings(asked, comparing=name != "run"), own)

        options = {key: value for key, value in OPTIONS.items() if key not in leave_out}
        hints: dict[str, Any] = {}
        for shown, key in in_panels(options):
            hints |= _hints(key, options[key], shown)
        for key, option in (more or {}).items():
            hints |= _hints(key, option, panel)
        run.__dict__["__signature__"] = Signature(
            [
                Parameter(key, Parameter.KEYWORD_ONLY, default=None, annotation=hint)
                for key, hint in hints.items()
            ]
        )
        run.__annotations__ = hints
        run.__doc__ = command.__doc__
        app.command(name, cls=cls, rich_help_panel=TRAIN)(run)
        return run

    return register


def _hints(key: str, option: tuple[Any, str], panel: str | None) -> dict[str, Any]:
    """The flag of a setting; one that is true or false has a hidden --no-… too, as help is narrow."""
    kind, text = option
    default, word = DEFAULTS.get(key), key.replace("_", "-")
    if default is not None and not isinstance(default, bool):
        text = f"{text} [{default:g}]" if isinstance(default, float) else f"{text} [{default}]"
    about: dict[str, Any] = {"show_default": False, "rich_help_panel": panel}
    if kind is not bool:
        return {
            key: Annotated[kind | None, typer.Option(f"--{word}", help=_literal(text), **about)]
        }
    if default is True or key == "momentum_reset":
        text = f"{text}; or --no-{word}"
    yes = typer.Option(f"--{word}", help=_literal(text), metavar="", **about)
    no = typer.Option(f"--no-{word}", hidden=True, **about)
    return {key: Annotated[bool | None, yes], f"no_{key}": Annotated[bool | None, no]}


def _literal(text: str) -> str:
    return text.replace("[", "\\[")
