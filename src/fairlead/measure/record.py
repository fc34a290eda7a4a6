"""Keeping what was measured of a run in its folder, where the report finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairlead.errors import FairleadError
from fairlead.measure.against import Against
from fairlead.measure.conformal import Coverage
from fairlead.run.folder import read
from fairlead.run.measured_file import pair_table, write_measured
from fairlead.run.measuring import Measured

CLIENTS = 500
"""The most clients whose coverage is kept."""
BOUND = "bound"


def record(folder: str | Path, found: Measured | Coverage | Against) -> None:
    """Keep a table of clients (`cka`), prediction sets (`conformal`) or a bound (`against`) in the folder of their run: the
    report shows them. A newer one of the same kind takes the place of the older one.

    >>> import tempfile, fairlead as fl
    >>> folder = tempfile.mkdtemp() + "/a"
    >>> task = fl.problems.random_quadratics(clients=5, dim=4, mu=0.2)
    >>> run = fl.train(task, fl.FedAvg(lr=0.01), rounds=5, steps=2, out=folder)
    >>> fl.measure.record(folder, fl.measure.against(run))
    >>> fl.runs.read(folder).measured["bound"]["theorem"]
    'Karimireddy et al. 2020, Theorem V'
    """
    name, table = _table(found)
    write_measured(read(folder).folder, name, table)


def _table(found: Measured | Coverage | Against) -> tuple[str, dict[str, Any]]:
    if isinstance(found, Coverage):
        return found.kind, _sets(found)
    if isinstance(found, Against):
        names = ("theorem", "of", "rounds", "bound", "mean", "error", "broken", "notes")
        return BOUND, {name: getattr(found, name) for name in names}
    table = pair_table(found)
    if table is None:
        raise FairleadError(
            f"{found.name} has no table of clients: take it as the run goes on, with train(measures=[…]), and the report "
            "shows it over rounds"
        )
    return found.name, table


def _sets(found: Coverage) -> dict[str, Any]:
    names = ("kappas", "coverage", "size", "empty", "accuracy", "calibration", "test", "notes")
    clients = found.by_client.shape[1]
    more = f"the first {CLIENTS} of {clients} clients" if clients > CLIENTS else ""
    return {
        **{name: getattr(found, name) for name in names},
        "by_client": found.by_client[:, :CLIENTS],
        "more": more,
    }
