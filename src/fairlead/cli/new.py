"""fairlead new: files to start from."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from fairlead.cli.common import ABOUT, app, errors_printed, examples, group_examples, out
from fairlead.errors import FairleadError

CHECKLIST = """\
What is left to do:
 1. {file}: the paper and its symbols, the client's and the server's lines.
 2. pytest {test}: one round by hand, and what the method reduces to.
 3. fairlead compare --methods fedavg,{file}:{name} --lr 0.1 --seeds 1
To make it a method of fairlead itself, as docs/add-a-method.md explains:
 4. move the two files to src/fairlead/methods and tests/methods; a line in methods/__init__.py, a paper in citations.py.
 5. a row in tests/conformance.py, an entry in tools/handbook/entries and `make pages`."""
"""What is printed after the files are written."""

new_app = typer.Typer(
    cls=group_examples("fairlead new method MyMethod"),
    help="Files to start from: method.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(new_app, name="new", rich_help_panel=ABOUT)


@new_app.callback()
def _group() -> None:
    """Files to start from."""


@new_app.command(
    "method",
    cls=examples(
        "fairlead new method MyMethod", "fairlead new method my-method --out methods && pytest methods"
    ),
)  # fmt: skip
def new_method_command(
    name: Annotated[str, typer.Argument(help="the method's name, such as MyMethod or my-method")],
    folder: Annotated[Path, typer.Option("--out", help="where to write the files")] = Path(),
) -> None:
    """Write a method that runs and its test, to be changed into yours, and print what is left to do."""
    with errors_printed():
        kind, module = names_of(name)
        file, test = write_method(kind, module, folder)
        out.print(f"written: {file} and {test}\n", highlight=False, soft_wrap=True)
        words = CHECKLIST.format(file=file, test=test, name=kind)
        out.print(words, highlight=False, markup=False, soft_wrap=True)


def names_of(name: str) -> tuple[str, str]:
    """The class and the module of a method.

    >>> names_of("FedNew"), names_of("my-method 2")
    (('FedNew', 'fed_new'), ('MyMethod2', 'my_method2'))
    """
    parts = re.findall(r"[^\W_]+", name, re.ASCII)
    kind = "".join(part[:1].upper() + part[1:] for part in parts)
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()
    if not module.isidentifier() or keyword.iskeyword(module):
        raise FairleadError(f"'{name}' is no name of a method: use letters, such as MyMethod")
    return kind, module


def write_method(kind: str, module: str, folder: Path) -> tuple[Path, Path]:
    """Write the method and its test; files that exist are left alone."""
    source = Path(__file__).parent / "skeleton"
    targets = folder / f"{module}.py", folder / f"test_{module}.py"
    for target in targets:
        if target.exists():
            raise FairleadError(f"{target} exists: give another name or another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for target, template in zip(targets, ("method.py.txt", "test_method.py.txt"), strict=True):
            text = Template((source / template).read_text(encoding="utf-8"))
            target.write_text(text.substitute(name=kind, module=module), encoding="utf-8")
    except OSError as error:
        raise FairleadError(f"cannot write to {folder}: {error.strerror}") from error
    return targets
