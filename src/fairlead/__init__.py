"""fairlead: federated optimization when clients' data differ.

>>> import fairlead as fl
>>> task = fl.problems.random_quadratics(clients=8, gradient=10.0)
>>> run = fl.train(task, fl.Scaffold(lr=0.5), rounds=200, steps=5)
>>> run.history.last("distance") < 1e-6
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairlead.version import __version__ as __version__

if TYPE_CHECKING:  # type checkers see every public name; programs import them when used, below
    from fairlead.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """A public name or submodule, imported when first used: the command line does not wait for torch."""
    if not name.startswith("__") or name == "__all__":
        known = vars(import_module("fairlead.api"))
        if name in known or name in globals():
            return globals().setdefault(name, known.get(name))
    raise AttributeError(f"module 'fairlead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("fairlead.api").__all__})
