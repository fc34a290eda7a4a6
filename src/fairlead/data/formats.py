"""Readers of the official files: IDX, CIFAR's binary version, LIBSVM, npz. Nothing is unpickled.

Images are uint8, channels first. A truncated, damaged or wrong file raises an error that names it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairlead.data.archives import contents, damaged, members, zip_members
from fairlead.errors import FairleadError

Array: TypeAlias = NDArray[Any]
Bytes: TypeAlias = NDArray[np.uint8]
Pair: TypeAlias = tuple[Array, Array]

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Arrays:
    """What a reader returns: training and test samples and, if known, their clients."""

    x: Array
    y: Array
    x_test: Array | None = None
    y_test: Array | None = None
    groups: Array | None = None
    groups_test: Array | None = None
    group_names: tuple[str, ...] = ()
    extra: Arrays | None = None
    """Further training samples of other clients."""


def read_idx(path: Path) -> Bytes:
    """A byte array from an IDX file, compressed or not."""
    return parse_idx(contents(path), path)


def parse_idx(data: bytes, name: Path | str) -> Bytes:
    """IDX: two zeros, the type 8 (bytes), the number of axes, their lengths, the values.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "three bytes")
    array([7, 8, 9], dtype=uint8)
    """
    if len(data) < 4:
        raise damaged(name, "is truncated inside its header")
    if data[:3] != b"\0\0\x08" or not 1 <= data[3] <= 4:
        raise damaged(name, f"is not an IDX file of bytes (it starts with {data[:4].hex()})")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise damaged(name, "is truncated inside its header")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    size = int(np.prod(shape, dtype=object))
    _check_length(name, len(data) - start, size)
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_idx_set(paths: Sequence[Path], classes: int) -> Arrays:
    """Training images and labels, then test images and labels, as in MNIST."""
    first, second = (
        _images(read_idx(paths[k]), read_idx(paths[k + 1]), paths[k + 1], classes) for k in (0, 2)
    )
    return Arrays(*first, *second)


def read_emnist(paths: Sequence[Path], part: str, classes: int, first: int = 0) -> Arrays:
    """One part of EMNIST from its archive: images are transposed upright, labels start at zero."""
    names = [
        f"emnist-{part}-{half}-{kind}-ubyte.gz"
        for half in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]
    unpacked = [
        parse_idx(data, f"{paths[0]}, {name}")
        for data, name in zip(members(paths[0], names), names, strict=True)
    ]
    pairs = [
        _images(unpacked[k], unpacked[k + 1], f"{paths[0]}, {names[k + 1]}", classes, first)
        for k in (0, 2)
    ]
    (x, y), (x_test, y_test) = pairs
    return Arrays(x.swapaxes(-1, -2), y, x_test.swapaxes(-1, -2), y_test)


def _images(
    images: Bytes, labels: Bytes, name: Path | str, classes: int, first: int = 0
) -> tuple[Bytes, NDArray[np.int64]]:
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise damaged(
            name, f"has labels of shape {labels.shape} for images of shape {images.shape}"
        )
    return images[:, None], check_labels(labels.astype(np.int64) - first, classes, name)


def read_cifar(
    paths: Sequence[Path],
    train: Sequence[str],
    test: str,
    classes: Sequence[int],
    records: tuple[int, int],
) -> Arrays:
    """CIFAR's binary version from its archive: records of label bytes and 3 × 32 × 32 pixels.

    classes: the number of classes of each label byte; the last byte is the label.
    records: the number of records per training and per test file.
    """
    names = [*train, test]
    counts = [records[0]] * len(train) + [records[1]]
    parts = [
        _records(data, f"{paths[0]}, {name}", classes, count)
        for data, name, count in zip(members(paths[0], names), names, counts, strict=True)
    ]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return Arrays(x, y, *parts[-1])


def _records(data: bytes, name: str, classes: Sequence[int], count: int) -> Pair:
    width = len(classes) + 3072
    _check_length(name, len(data), count * width)
    rows = np.frombuffer(data, np.uint8).reshape(count, width)
    for column, limit in enumerate(classes):
        check_labels(rows[:, column], limit, name)
    return rows[:, -3072:].reshape(count, 3, 32, 32), rows[:, len(classes) - 1].astype(np.int64)


def read_libsvm_set(paths: Sequence[Path], features: int, rows: Sequence[int | None]) -> Arrays:
    """Training rows and, with two files, test rows."""
    pairs = [read_libsvm(p, features, n) for p, n in zip(paths, rows, strict=True)]
    x_test, y_test = pairs[1] if len(pairs) > 1 else (None, None)
    return Arrays(*pairs[0], x_test, y_test)


def read_libsvm(path: Path, features: int, rows: int | None = None) -> Pair:
    """Lines `label index:value …` with labels −1 and +1 and indices from 1, as dense float32."""
    lines = contents(path).split(b"\n")
    if lines.pop():
        raise damaged(path, "is truncated: its last line has no line break")
    if rows is not None and len(lines) != rows:
        raise damaged(path, f"has {len(lines)} lines instead of {rows}")
    x, y = np.zeros((len(lines), features), np.float32), np.zeros(len(lines), np.float32)
    for k, line in enumerate(lines):
        try:
            y[k] = _sign_and_features(line, x[k])
        except ValueError as error:
            raise damaged(path, f"is damaged in line {k + 1} ({error})") from error
    return x, y


def _sign_and_features(line: bytes, row: Array) -> float:
    """Fill one row and return its label."""
    label, *pairs = line.split()
    if label not in (b"+1", b"1", b"-1"):
        raise ValueError(f"the label is {label.decode('ascii', 'replace')}, not −1 or +1")
    last = 0
    for pair in pairs:
        index, _, value = pair.partition(b":")
        position, number = int(index), float(value)
        if not (last < position <= len(row) and abs(number) <= _LARGEST):
            raise ValueError(
                f"{pair.decode('ascii', 'replace')} after index {last} of {len(row)} features"
            )
        row[position - 1] = number
        last = position
    return float(label)


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an npz file; pickled objects are rejected."""
    try:
        return {info.filename.removesuffix(".npy"): _npy(get()) for info, get in zip_members(path)}
    except FairleadError:
        raise
    except Exception as error:  # damaged headers can raise anything
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise FairleadError(
                f"{path} holds pickled objects, which can run code: save plain arrays"
            ) from error
        raise damaged(path, f"is truncated, damaged or not an npz file ({error})") from error


def _npy(data: bytes) -> Array:
    return np.lib.format.read_array(BytesIO(data), allow_pickle=False)


def from_npz(path: Path) -> Arrays:
    """x_train and y_train, optionally x_test and y_test, each sample's client in writer_train and
    writer_test, and the clients' names in writer_ids; further clients in x_extra, y_extra, writer_extra and
    extra_writer_ids."""
    found = read_npz(path)
    for name in ("x_train", "y_train"):
        if name not in found:
            raise FairleadError(f"{path} has no array {name}: its arrays are {', '.join(found)}")
    for name, array in found.items():
        _check_kind(path, name, array)
    test = (found["x_test"], found["y_test"]) if {"x_test", "y_test"} <= found.keys() else None
    if test is not None and len(test[0]) == 0:
        test = None
    for part in ("train", "test", "extra"):
        _check_lengths(path, found, [f"{k}_{part}" for k in ("x", "y", "writer")])
        ids = "extra_writer_ids" if part == "extra" else "writer_ids"
        if ids in found and f"writer_{part}" in found:
            check_labels(found[f"writer_{part}"], len(found[ids]), f"{path}, writer_{part}")
    extra = None
    if {"x_extra", "y_extra"} <= found.keys() and len(found["x_extra"]):
        if found["x_extra"].shape[1:] != found["x_train"].shape[1:]:
            raise FairleadError(
                f"{path} has an x_extra of another shape than x_train: save it again"
            )
        extra = Arrays(
            channels_first(found["x_extra"]),
            found["y_extra"],
            groups=found.get("writer_extra"),
            group_names=tuple(str(name) for name in found.get("extra_writer_ids", ())),
        )
    return Arrays(
        channels_first(found["x_train"]),
        found["y_train"],
        channels_first(test[0]) if test else None,
        test[1] if test else None,
        found.get("writer_train"),
        found.get("writer_test") if test else None,
        tuple(str(name) for name in found.get("writer_ids", ())),
        extra,
    )


def _check_kind(path: Path, name: str, array: Array) -> None:
    """Refuse arrays that are not what their name says; others may hold anything."""
    what, _, part = name.partition("_")
    kinds = {"x": "biuf", "y": "biufUS", "writer": "iu"}.get(what)
    if part not in ("train", "test", "extra"):
        kinds = "biufUS" if name in ("writer_ids", "extra_writer_ids") else None
    if kinds is not None and (array.ndim == 0 or array.dtype.kind not in kinds):
        raise FairleadError(
            f"{path} has an array {name} of shape {array.shape} and type {array.dtype}: save one row per "
            "sample, of numbers"
        )
    if name.startswith("x_") and array.ndim < 2:
        raise FairleadError(f"{path} has an array {name} of one axis: save one row per sample")


def channels_first(x: Array) -> Array:
    """Images as (N, C, H, W); other arrays are unchanged.

    >>> channels_first(np.zeros((5, 32, 32, 3), np.uint8)).shape
    (5, 3, 32, 32)
    >>> channels_first(np.zeros((5, 28, 28), np.uint8)).shape
    (5, 1, 28, 28)
    """
    if x.dtype != np.uint8 or x.ndim < 3:
        return x
    if x.ndim == 3:
        return x[:, None]
    return np.moveaxis(x, -1, 1) if x.shape[-1] in (1, 3) else x


def check_labels(labels: Array, classes: int, name: Path | str) -> Array:
    """Reject labels outside 0 … classes − 1."""
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise damaged(name, f"holds the label {wrong}, which is not one of the {classes} classes")
    return labels


def _check_length(name: Path | str, have: int, expected: int) -> None:
    if have < expected:
        raise damaged(name, f"is truncated: {have} of {expected} bytes of data")
    if have > expected:
        raise damaged(name, f"holds {have} bytes of data instead of {expected}")


def _check_lengths(path: Path, found: Mapping[str, Array], names: Sequence[str]) -> None:
    have = {name: found[name].shape[:1] for name in names if name in found}
    if len(set(have.values())) > 1:
        shapes = ", ".join(f"{name} {shape}" for name, shape in have.items())
        raise FairleadError(f"{path} has arrays of different lengths ({shapes}): save it again")
