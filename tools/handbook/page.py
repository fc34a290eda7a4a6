"""The text of a method's page, and of the index."""

from __future__ import annotations

from pathlib import Path

import fairlead as fl
from fairlead.methods import PRESETS
from fairlead.methods.citations import PAPERS
from handbook import cost, source, theorems
from handbook.entries import ENTRIES
from handbook.entry import Entry, prose
from handbook.pictures import caption

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "methods"
INDEX = ROOT / "docs" / "methods.md"
BEGIN, END = "<!-- made by tools/handbook -->\n", "<!-- end -->"


def page(entry: Entry) -> str:
    """One method's page."""
    cls = fl.METHODS[entry.name]
    paper = PAPERS[cls.paper]
    parts = [
        f"# {entry.title}",
        f"`fl.{cls.__name__}` · `--method {entry.name}` · {paper.short}, {entry.where}",
        f"**{entry.line[0].upper()}{entry.line[1:]}.**",
        prose(entry.idea),
        f"![{entry.title}: {entry.line}](pictures/{entry.name}.svg)",
        prose(caption(entry)),
        "## Try it",
        f"```python\n{example(entry)}```",
        command(entry),
        "## When to use it",
        _list(entry.use),
        "## When not",
        _list(entry.avoid),
        "## The code beside the paper",
        _code(entry),
        "## What a round costs a client",
        _cost(entry),
        "## What theory says",
        theorems.section(entry),
        *_measured(entry),
        "## Cite",
        f"```bibtex\n{paper.bibtex}\n```",
        f"`fairlead cite {entry.name}` prints this. "
        "See also: [all methods](../methods.md), [what reduces to what](../methods.md#what-reduces-to-what), "
        "[how we read the papers](../methods.md#how-we-read-the-papers).",
    ]
    return "\n\n".join(parts) + "\n"


def example(entry: Entry) -> str:
    """A program that runs the method as it is."""
    if entry.game:
        task, work = "fl.problems.quadratic_game(clients=10, pairwise=True)", "rounds=60, steps=5"
        shown = 'print(run.history.last("distance"))'
    else:
        model = "" if entry.model == "softmax" else f'model="{entry.model}"'
        task, work = f"fl.tasks.digits({model})", "rounds=60, batch_size=0.2"
        shown = 'print(run.history.last("accuracy"), run.ledger.up, run.ledger.down)'
    return f"import fairlead as fl\n\ntask = {task}\nrun = fl.train(task, {entry.call}, {work})\n{shown}\n"


def command(entry: Entry) -> str:
    """The same on the command line, and the presets."""
    lr = theorems.step_size(entry)
    task = "--task quadratic-game --clients 10 --steps 5 " if entry.game else ""
    model = "" if entry.model == "softmax" else f"--model {entry.model} "
    words = f"`fairlead run --method {entry.name} {task}{model}--lr {lr:g}`"
    if not entry.presets:
        return f"On the command line: {words}."
    named = "; ".join(f"`{name}` is {_preset(name)}" for name in entry.presets)
    return f"On the command line: {words}. Presets: {named}."


def _preset(name: str) -> str:
    base, settings = PRESETS[name]
    return f"{base} with " + ", ".join(f"{key} = {value}" for key, value in settings.items())


def _list(sentences: tuple[str, ...]) -> str:
    return "\n".join(f"- {prose(sentence)}" for sentence in sentences)


def _code(entry: Entry) -> str:
    head = source.symbols(entry)
    parts = [f"```text\n{head}\n```"] if head else []
    rows = source.lines(entry)
    if rows:
        table = ["| the paper | the code |", "|---|---|"]
        table += [f"| {where} | `{_cell(code)}` |" for where, code in rows]
        parts.append("\n".join(table))
    return "\n\n".join([*parts, source.listing(entry)])


def _cell(code: str) -> str:
    return code.replace("|", "\\|")


def _cost(entry: Entry) -> str:
    sizes = cost.measured(entry).sizes
    where = f"d = {sizes['d']:,} parameters, K = {sizes['K']} local steps of b = {sizes['b']} samples, n = {sizes['n']:.1f} samples per client"
    if "p" in (entry.cost.up or ""):
        where += f", p = {sizes['p']:,} parameters in the corrected part"
    rows = ["| per client and round | | here |", "|---|---|---|"]
    rows += [f"| {what} | {formula} | {value} |" for what, formula, value in cost.checked(entry)]
    return (
        "\n".join(rows)
        + f"\n\nHere: `{entry.call}` on digits, {where}; 32 bits per number, from the ledger and the counters of the run. "
        + entry.cost.note
    )


def _measured(entry: Entry) -> list[str]:
    if not entry.results:
        return []
    links = ", ".join(f"[{name}](../results.md#{name.lower()})" for name in entry.results)
    return ["## Results", f"Experiments of the papers with this method: {links}."]


def index() -> str:
    """The table of the index."""
    rows = [
        "| method | `--method` | paper | in one line | exchanges | up | down | kept | gradients |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in ENTRIES.values():
        names = ", ".join(f"`{name}`" for name in (entry.name, *entry.presets))
        paper = PAPERS[fl.METHODS[entry.name].paper].short
        c = entry.cost
        up = "d, coded" if c.up is None else cost.written(c.up)
        rows.append(
            f"| [{entry.title}](methods/{entry.name}.md) | {names} | {paper} | {entry.line} | {c.exchanges} | {up} | "
            f"{cost.written(c.down)} | {cost.written(c.kept)} | {cost.written(c.gradients)} |"
        )
    return "\n".join(rows) + "\n"


def indexed(text: str) -> str:
    """A page with a new table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{index()}\n{END}{after}"
