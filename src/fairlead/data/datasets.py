"""Datasets of torch and of Hugging Face as arrays, read once.

A sample is a pair (input, target), whose input may be a tuple or a dict, or a dict in which `label` or `labels` is the
target and everything else an input. Token lists of different lengths are padded: inputs with zeros, next to a mask that
is 1 at tokens and 0 at padding, and targets with `IGNORED`, which losses and metrics leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fairlead.data.checks import as_tensor
from fairlead.data.formats import channels_first
from fairlead.data.images import Images
from fairlead.data.splits import Split
from fairlead.errors import FairleadError

IGNORED = -100
"""The target of padding."""
MASK = "attention_mask"
"""The name of the mask next to named inputs."""
TARGETS = ("label", "labels")


def is_dataset(given: Any) -> bool:
    """Whether it is a dataset of torch or of Hugging Face."""
    return isinstance(given, Dataset) or (
        hasattr(given, "column_names") and hasattr(given, "features")
    )


def arrays_of(data: Any, test: Any, clients: Any, transform: Any) -> tuple[Any, Any, Split, Any]:
    """What a task is made of: the training data and test data as tuples (inputs, *targets), the split, and how the first
    input becomes numbers. Datasets are read, and their images normalised; images may be grey without a channel axis."""
    data, test = parts(data, test)
    if is_dataset(data) or are_datasets(data):
        data, own = read(data)
        clients, transform = one_split(clients, own), transform or normalised(data[0])
    elif not isinstance(data, tuple | list) or not data:
        raise FairleadError(
            "data must be tensors: give a tuple such as (inputs, targets), or a dataset"
        )
    if clients is None:
        raise FairleadError(
            "clients is missing: give one index list per client, for example fl.splits.iid(y, clients=10)"
        )
    if test is not None:
        test = read(test)[0] if is_dataset(test) or are_datasets(test) else test
    if isinstance(transform, Images):
        data, test = _with_channels(data), None if test is None else _with_channels(test)
    split = clients if isinstance(clients, Split) else Split.of(clients)
    return data, test, split, transform


def parts(dataset: Any, test: Any) -> tuple[Any, Any]:
    """The training and test part: those of a DatasetDict, or the datasets as given."""
    if not isinstance(dataset, Mapping) or not all(map(is_dataset, dataset.values())):
        return dataset, test
    if "train" not in dataset:
        raise FairleadError(
            f"the DatasetDict has no part 'train', only {', '.join(dataset)}: give one part, and test=… another"
        )
    return dataset["train"], dataset.get("test") if test is None else test


def one_split(clients: Any, own: Split | None) -> Any:
    """The split that was given, or that of a list of datasets."""
    if clients is not None and own is not None:
        raise FairleadError("a list of datasets already has one per client: omit clients")
    return own if clients is None else clients


def read(data: Any) -> tuple[tuple[Any, ...], Split | None]:
    """A dataset as (inputs, *targets), each an array or a tuple or dict of arrays with one row per sample; for a list of
    datasets also the split of one per client.

    >>> read(TensorDataset(torch.ones(2, 3), torch.tensor([0, 1])))[0][1]
    tensor([0, 1])
    """
    sets = [data] if is_dataset(data) else list(data)
    sizes = [_length(part) for part in sets]
    if not all(sizes):
        raise FairleadError(
            "the dataset is empty"
            if is_dataset(data)
            else "one of the datasets is empty: give every client at least one sample"
        )
    ends = np.cumsum(sizes)
    split = None if is_dataset(data) else Split(np.arange(ends[-1]), np.array([0, *ends]))
    if all(isinstance(part, TensorDataset) and len(part.tensors) > 1 for part in sets):
        columns = zip(*(part.tensors for part in sets), strict=True)
        return tuple(c[0] if len(c) == 1 else torch.cat(c) for c in columns), split
    return arranged([sample for part in sets for sample in samples(part)]), split


def are_datasets(given: Any) -> bool:
    """Whether it is a list of datasets."""
    return isinstance(given, list | tuple) and len(given) > 0 and all(map(is_dataset, given))


def normalised(inputs: Any) -> Images | None:
    """The transform of inputs whose first are images as bytes."""
    while isinstance(inputs, tuple | Mapping):
        inputs = inputs[0] if isinstance(inputs, tuple) else next(iter(inputs.values()))
    images = str(inputs.dtype).removeprefix("torch.") == "uint8" and inputs.ndim == 4
    return Images.of(inputs) if images else None


def samples(dataset: Any) -> list[Any]:
    """All samples of a dataset, each asked for once, as it may be random."""
    count = _length(dataset)
    try:
        return [dataset[k] for k in range(count)]
    except (TypeError, KeyError, IndexError) as error:
        raise FairleadError(f"the dataset must return samples by index: {error!r}") from error


def arranged(found: Sequence[Any]) -> tuple[Any, ...]:
    """Samples as (inputs, *targets)."""
    first = found[0]
    if isinstance(first, Mapping):
        named = [name for name in TARGETS if name in first]
        if len(named) != 1 or len(first) < 2:
            raise FairleadError(
                f"the samples are dicts with {', '.join(map(str, first))}: call the target label, return (input, label) "
                "pairs by index, or name the columns with Task.from_huggingface"
            )
        (target,) = named
        rest = [{k: v for k, v in sample.items() if k != target} for sample in found]
        inputs = [next(iter(r.values())) for r in rest] if len(first) == 2 else rest
        return stacked_inputs(inputs), stacked([sample[target] for sample in found], IGNORED)[0]
    if not isinstance(first, tuple | list) or len(first) < 2:
        raise FairleadError(
            f"the samples are of type {type(first).__name__}: a dataset must return (input, label) pairs by index"
        )
    parts = list(zip(*found, strict=True))
    return stacked_inputs(parts[0]), *(stacked(list(part), IGNORED)[0] for part in parts[1:])


def stacked_inputs(rows: Sequence[Any], padding: int = 0) -> Any:
    """Inputs of all samples together, with a mask next to those that were padded."""
    first = rows[0]
    if isinstance(first, Mapping):
        found = {
            name: stacked([row[name] for row in rows], padding * (name != MASK)) for name in first
        }
        return with_masks(found)
    if isinstance(first, tuple):
        parts = [stacked(list(part), padding) for part in zip(*rows, strict=True)]
        return tuple(t for part in parts for t in part if t is not None)
    whole, mask = stacked(rows, padding)
    return whole if mask is None else (whole, mask)


def with_masks(found: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Named inputs, with the mask of those that were padded unless they have one."""
    inputs = {name: whole for name, (whole, _) in found.items()}
    padded = {name: mask for name, (_, mask) in found.items() if mask is not None}
    if MASK in inputs:
        return inputs
    if len(padded) == 1:
        return {**inputs, MASK: next(iter(padded.values()))}
    return {**inputs, **{f"{name}_mask": mask for name, mask in padded.items()}}


def stacked(rows: Sequence[Any], padding: int) -> tuple[Any, NDArray[np.int64] | None]:
    """One array of all rows, and a mask if they were lists of different lengths. Images get a channel axis; tuples and
    dicts in a sample are put together part by part.

    >>> stacked([[3, 4], [5]], 0)
    (array([[3, 4],
           [5, 0]]), array([[1, 1],
           [1, 0]]))
    """
    first = rows[0]
    if isinstance(first, Mapping):
        return {name: stacked([row[name] for row in rows], padding)[0] for name in first}, None
    if isinstance(first, tuple):
        return tuple(stacked(part, padding)[0] for part in zip(*rows, strict=True)), None
    if isinstance(first, Tensor) and len({row.shape for row in rows}) == 1:
        return torch.stack(list(rows)), None
    arrays = [np.asarray(row) for row in rows]
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        whole = np.stack(arrays)
        return (channels_first(whole) if hasattr(first, "convert") else whole), None
    if any(array.ndim != 1 or (array.size and array.dtype.kind not in "iub") for array in arrays):
        some = " and ".join(str(shape) for shape in sorted(shapes)[:2])
        raise FairleadError(
            f"the inputs must have one shape, but there are {some}: only lists of tokens are padded"
        )
    return padded(arrays, padding)


def padded(rows: Sequence[NDArray[Any]], padding: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Lists of different lengths as one array, and a mask that is 1 where it holds their entries."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    # an empty list has no type of its own
    kind = np.result_type(*{row.dtype for row in rows if len(row)})
    whole = np.full(mask.shape, padding, dtype=kind)
    whole[mask] = np.concatenate(rows)
    return whole, mask.astype(np.int64)


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError as error:
        raise FairleadError(
            f"the dataset must have a length, which a {type(dataset).__name__} has not: give one that returns samples by index"
        ) from error


def _with_channels(data: Sequence[Any]) -> tuple[Any, ...]:
    """The data with a channel axis in grey images (N, H, W), if these are the first input."""

    def changed(inputs: Any) -> Any:
        if isinstance(inputs, tuple):
            return changed(inputs[0]), *inputs[1:]
        if isinstance(inputs, Mapping):
            name = next(iter(inputs))
            return {**inputs, name: changed(inputs[name])}
        grey = getattr(inputs, "ndim", 0) == 3 and as_tensor(inputs[:1]).dtype == torch.uint8
        return inputs[:, None] if grey else inputs

    return changed(data[0]), *data[1:]
