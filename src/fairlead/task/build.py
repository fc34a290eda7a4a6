"""The constructors `Task.from_…`: tasks from your own functions, arrays, datasets or tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.func import vmap

from fairlead.data import datasets, huggingface, tables
from fairlead.data.checks import as_tensor
from fairlead.data.held_out import held_out
from fairlead.data.own_test import of_held_out
from fairlead.data.splits import Split, by_id
from fairlead.errors import FairleadError
from fairlead.task.arrangement import leaves, mapped
from fairlead.task.losses import value
from fairlead.task.models import softmax_regression
from fairlead.task.torch_losses import is_cross_entropy

P = ParamSpec("P")
T = TypeVar("T")


class Constructor(Protocol[P]):
    """A class method that returns an instance of the class it is called on."""

    def __get__(self, instance: object, owner: type[T]) -> Callable[P, T]: ...


def constructor(create: Callable[Concatenate[Any, P], Any]) -> Constructor[P]:
    """A function of a class as its class method."""
    return cast(Any, classmethod(create))


class Function(nn.Module):
    """A function f(v, *sample) of a vector as a model whose output is its value. A `loose` function
    inspects its samples in Python and runs one client at a time."""

    def __init__(
        self, f: Callable[..., Tensor], start: Tensor, batched: bool, loose: bool = False
    ) -> None:
        super().__init__()
        self.f, self.batched, self.loose = f, batched, loose
        self.v = nn.Parameter(start.clone())

    def forward(self, *batch: Tensor) -> Tensor:
        if self.batched:
            return self.f(self.v, *batch)
        return vmap(self.f, in_dims=(None, *(0 for _ in batch)))(self.v, *batch)


def from_function(
    cls: Callable[..., T],
    f: Callable[..., Tensor],
    data: Sequence[Tensor],
    start: Tensor,
    clients: Split | Sequence[ArrayLike] | None = None,
    *,
    batched: bool = False,
    **settings: Any,
) -> T:
    """A task from f(x, *sample) → a number, with one sample per client unless `clients` says
    otherwise. With `batched` it is f(x, *samples) → one number per sample, which is faster.

    >>> import fairlead as fl
    >>> b = torch.tensor([[1.0], [3.0]])
    >>> task = fl.Task.from_function(lambda x, b: ((x - b) ** 2).sum() / 2, [b], torch.zeros(1))
    >>> task.clients, task.objective(torch.zeros(1))
    (2, tensor(2.5000))
    """
    owners = [[i] for i in range(len(data[0]))] if clients is None else clients
    settings.setdefault("dtype", start.dtype)
    return _create(cls, Function(f, start, batched), value, data, owners, settings)


def from_functions(
    cls: Callable[..., T],
    functions: Sequence[Callable[[Tensor], Tensor]],
    start: Tensor,
    **settings: Any,
) -> T:
    """A task from one function of the vector per client; these run one client at a time.

    >>> import fairlead as fl
    >>> task = fl.Task.from_functions([lambda x: x.sum(), lambda x: (x * x).sum()], torch.ones(2))
    >>> task.objective(torch.ones(2))
    tensor(2.)
    """

    def values(v: Tensor, ids: Tensor) -> Tensor:
        return torch.stack([functions[int(i)](v) for i in ids])

    ids = torch.arange(len(functions))
    settings.setdefault("dtype", start.dtype)
    model = Function(values, start, batched=True, loose=True)
    return _create(cls, model, value, [ids], ids[:, None].tolist(), settings)


def from_arrays(
    cls: Callable[..., T],
    x: Any,
    y: ArrayLike,
    *,
    client: ArrayLike | None = None,
    clients: Split | Sequence[ArrayLike] | None = None,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    loss: Any = None,
    hold_out: float = 0.0,
    seed: int = 0,
    **settings: Any,
) -> T:
    """A task from arrays of inputs and labels.

    x: one array with a row per sample, a tuple or dict of arrays for a model of several inputs, or a list of token
        lists, which are padded next to a mask (see `fairlead.data.datasets`).
    client: the client of each sample, a number or string per sample; or `clients`, index lists.
    model: linear by default. loss: by default cross-entropy for classes (whole numbers or
        strings), squared error for other numbers.
    hold_out: the share of every client's samples to use as test data; `valid` then takes its share of the rest.

    >>> import fairlead as fl
    >>> x, y = np.eye(6, dtype=np.float32), ["cat", "dog", "cat", "dog", "cat", "dog"]
    >>> task = fl.Task.from_arrays(x, y, client=["A", "A", "A", "B", "B", "B"])
    >>> task.clients, task.dim
    (2, 14)
    """
    if (client is None) == (clients is None):
        raise FairleadError(
            "samples must be assigned to clients in one way: give either client or clients"
        )
    code = tables.coding(
        y, "cross_entropy" if is_cross_entropy(loss) else loss, keep=model is not None
    )
    numbers = model is None and settings.get("transform") is None
    inputs, target = _tree(x, numbers), code(y)
    count = len(next(leaves(inputs)))
    if clients is not None:
        split = clients if isinstance(clients, Split) else Split.of(clients)
    else:
        ids = np.asarray(client)
        if ids.shape != (count,):
            raise FairleadError(
                f"client has {len(ids)} entries for {count} samples: give one per sample"
            )
        split = by_id(ids)
    loss = loss or ("squared" if code.dtype == torch.float32 else "cross_entropy")
    if loss == "logistic":
        target = _signs(target, code.classes)
    if model is None:
        if isinstance(inputs, tuple | Mapping):
            raise FairleadError("there are several inputs: give a model that takes them")
        size, outputs = int(np.prod(inputs.shape[1:])), code.classes or 1
        model = softmax_regression(size, 1 if loss == "logistic" else outputs)
    if hold_out:
        if "test" in settings:
            raise FairleadError("test and hold_out are both given: keep one")
        whole = split
        split, taken = held_out(whole, hold_out, seed)
        rows, settings["test_clients"] = torch.from_numpy(taken), of_held_out(whole, taken)
        settings["test"] = mapped(inputs, lambda t: as_tensor(t[rows])), target[rows]
    elif settings.get("test") is not None:
        x_test, y_test = settings["test"]
        tested = code(y_test)
        tested = _signs(tested, code.classes) if loss == "logistic" else tested
        x_test = _tree(x_test, numbers)
        if isinstance(x_test, Tensor):
            x_test = x_test.to(_inputs(inputs[:1], False).dtype)
        settings["test"] = x_test, tested
    if code.names is not None:
        settings["label_names"] = [str(name) for name in code.names]
    return _create(cls, model, loss, (inputs, target), split, settings)


def from_torch_dataset(
    cls: Callable[..., T], dataset: Any, *, client: ArrayLike | None = None, **settings: Any
) -> T:
    """A task from a dataset of (input, label) pairs with `client` ids or `clients`, or from a list of datasets, one
    per client; `test` may be a dataset. The other settings are those of `from_arrays`."""
    data, own = datasets.read(dataset)
    if own is not None and client is not None:
        raise FairleadError("a list of datasets already has one per client: omit client")
    clients = datasets.one_split(settings.pop("clients", None), own)
    if datasets.is_dataset(settings.get("test")):
        settings["test"] = datasets.read(settings["test"])[0]
    if len(data) != 2:
        raise FairleadError(
            f"the samples have {len(data)} parts: a dataset must return (input, label) pairs by index"
        )
    settings.setdefault("transform", datasets.normalised(data[0]))
    return from_arrays(cls, *data, client=client, clients=clients, **settings)


def from_huggingface(
    cls: Callable[..., T],
    dataset: Any,
    *,
    inputs: str | Sequence[str],
    target: str,
    client: str | None = None,
    tokenizer: huggingface.Tokenizer | None = None,
    padding: int = 0,
    **settings: Any,
) -> T:
    """A task from a dataset of the `datasets` library, or from a DatasetDict with the parts train and, if there is one,
    test. The clients are named by the column `client`, or given as `clients`.

    inputs: one column, or a list of columns that the model takes by name. Images are normalised; token lists of
        different lengths are padded with `padding`, next to a mask: the model's second argument, or `attention_mask`
        of a model with named inputs. Targets are padded with −100, which losses leave out.
    tokenizer: a function from text to token numbers, a list or a dict of lists, for columns of text.

    The other settings are those of `from_arrays`; `test` may be a dataset.
    """
    train, test = datasets.parts(dataset, settings.pop("test", None))
    more = [] if client is None else [client]
    x, y, *ids = huggingface.columns(train, inputs, target, more, tokenizer, padding)
    if datasets.is_dataset(test):
        test = huggingface.columns(test, inputs, target, [], tokenizer, padding)
    if test is not None:
        settings["test"] = test
    settings.setdefault("transform", datasets.normalised(x))
    return from_arrays(cls, x, y, client=ids[0] if ids else None, **settings)


def from_table(
    cls: Callable[..., T],
    table: Any,
    *,
    target: str,
    client: str | None = None,
    features: Sequence[str] | None = None,
    scale: bool = True,
    **settings: Any,
) -> T:
    """A task from columns by name: a dict of arrays, or a table of pandas, polars or pyarrow. The clients are named by
    the column `client`, or given as `clients`.

    features: the input columns, by default all others. String columns become indicators;
        with `scale`, numbers get mean zero and variance one over all clients.
    """
    table = tables.columns(table)
    names = [n for n in table if n not in (target, client)] if features is None else features
    x = tables.features(table, list(names), scale)
    owner = None if client is None else tables.column(table, client)
    return from_arrays(cls, x, tables.column(table, target), client=owner, **settings)


def from_csv(cls: Callable[..., T], path: str | Path, **settings: Any) -> T:
    """A task from a comma-separated file with a header; settings are those of `from_table`."""
    return from_table(cls, tables.read_csv(path), **settings)


def from_parquet(cls: Callable[..., T], path: str | Path, **settings: Any) -> T:
    """A task from a Parquet file; settings are those of `from_table`."""
    return from_table(cls, tables.read_parquet(path), **settings)


def _create(
    cls: Callable[..., T], model: Any, loss: Any, data: Any, clients: Any, settings: dict[str, Any]
) -> T:
    return cls(**{"model": model, "loss": loss, "data": data, "clients": clients, **settings})


def _tree(x: Any, as_numbers: bool) -> Any:
    """Inputs as tensors, however nested; memory-mapped ones stay as they are, and token lists of different lengths are
    padded."""
    if isinstance(x, list):
        x = datasets.stacked_inputs(x)
    return mapped(x, lambda a: a if isinstance(a, np.memmap) else _inputs(a, as_numbers))


def _inputs(x: Any, as_numbers: bool) -> Tensor:
    """Inputs as a tensor; integers and booleans become floats if `as_numbers`."""
    array = x if isinstance(x, Tensor) else np.ascontiguousarray(np.asarray(x))
    if isinstance(array, np.ndarray):
        if array.dtype.kind not in "iufb":
            raise FairleadError(f"the inputs are {array.dtype}: must be numbers")
        array = array.astype(array.dtype.newbyteorder("="))
    found = as_tensor(array)
    return found.float() if as_numbers and not found.is_floating_point() else found


def _signs(target: Tensor, classes: int | None) -> Tensor:
    if classes not in (None, 2):
        raise FairleadError(f"there are {classes} classes: the logistic loss needs exactly 2")
    return 2.0 * target.float() - 1 if classes == 2 else target
