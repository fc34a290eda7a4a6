"""LEAF's JSON files: FEMNIST by writer, Shakespeare by speaking role (Caldas et al. 2018)."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairlead.data.archives import contents, damaged
from fairlead.data.formats import Array, Arrays, check_labels
from fairlead.errors import FairleadError

CHARACTERS = "".join(sorted(string.ascii_letters + string.digits + "\n !\"&'(),-.:;>?[]}"))
"""The 80 characters of Shakespeare's plays in LEAF's order; a character's code is its index."""

_CODE = np.full(128, 255, np.uint8)
_CODE[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))

Client: TypeAlias = tuple[str, Array, Array]
Decode: TypeAlias = Callable[[Path, dict[str, dict[str, list[Any]]]], Iterator[Client]]


def read_femnist(paths: Sequence[Path]) -> Arrays:
    """28 × 28 images of 62 classes by writer, from the folders train and test."""
    return _read(paths, _decode_images)


def read_shakespeare(paths: Sequence[Path]) -> Arrays:
    """Eighty characters as codes, the code of the next one, and the speaking role."""
    return _read(paths, _decode_text)


def _read(paths: Sequence[Path], decode: Decode) -> Arrays:
    train, test = ([c for file in _files(p) for c in decode(file, _users(file))] for p in paths)
    for clients, folder in ((train, paths[0]), (test, paths[1])):
        names = [name for name, _, _ in clients]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise FairleadError(
                f"{folder} has the client {twice} twice: keep the output of one run of LEAF's script"
            )
    names = tuple(sorted({name for name, _, _ in train + test}))
    number = {name: k for k, name in enumerate(names)}
    x, y, groups = _joined(train, number)
    x_test, y_test, groups_test = _joined(test, number)
    return Arrays(x, y, x_test, y_test, groups, groups_test, names)


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FairleadError(f"{folder} has no JSON files: copy the output of LEAF's script there")
    return files


def _users(path: Path) -> dict[str, dict[str, list[Any]]]:
    """The user_data of a file; all but the values is checked."""
    try:
        found = json.loads(contents(path))
        users, data = list(found["users"]), dict(found["user_data"])
        counts = dict(zip(users, found.get("num_samples", []), strict=False))
        consistent = sorted(users) == sorted(data) and all(
            len(d["x"]) == len(d["y"]) == counts.get(u, len(d["x"])) for u, d in data.items()
        )
    except FairleadError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, f"is truncated, damaged or not LEAF's JSON ({error})") from error
    if not consistent:
        raise damaged(path, "lists clients or sample counts that do not match its data")
    return {user: d for user, d in data.items() if len(d["x"])}


def _decode_images(path: Path, users: dict[str, dict[str, list[Any]]]) -> Iterator[Client]:
    """Pixels are 0 … 1 or 0 … 255 throughout a file."""
    try:
        pixels = {
            user: np.asarray(d["x"], np.float64).reshape(-1, 784) for user, d in users.items()
        }
        labels = {user: np.asarray(d["y"], np.int64) for user, d in users.items()}
    except (ValueError, TypeError, OverflowError) as error:
        raise damaged(path, f"does not hold images of 784 numbers ({error})") from error
    low = np.min([p.min() for p in pixels.values()], initial=0.0)
    high = np.max([p.max() for p in pixels.values()], initial=0.0)
    if not (low >= 0 and high <= 255):
        raise damaged(path, f"holds pixels from {low} to {high}, not from 0 to 255")
    scale = 255 if high <= 1 else 1
    for user, x in pixels.items():
        if len(x) != len(labels[user]):
            raise damaged(path, f"does not hold images of 784 numbers for the client {user}")
        images = np.rint(scale * x).astype(np.uint8).reshape(-1, 1, 28, 28)
        yield user, images, check_labels(labels[user], 62, path)


def _decode_text(path: Path, users: dict[str, dict[str, list[Any]]]) -> Iterator[Client]:
    for user, d in users.items():
        try:
            x = _codes("".join(d["x"])).reshape(-1, 80)
            y = _codes("".join(d["y"]))
        except (ValueError, TypeError) as error:
            raise damaged(path, f"does not hold lines of 80 known characters ({error})") from error
        if not len(d["x"]) == len(x) == len(y) or {len(line) for line in d["x"]} != {80}:
            raise damaged(path, f"has lines without 80 characters for the client {user}")
        yield user, x, y.astype(np.int64)


def _codes(text: str) -> NDArray[np.uint8]:
    codes = _CODE[np.frombuffer(text.encode("ascii"), np.uint8)]
    if (codes == 255).any():
        other = text[int((codes == 255).argmax())]
        raise ValueError(f"{other!r} is not one of the {len(CHARACTERS)}")
    return codes


def _joined(clients: list[Client], number: dict[str, int]) -> tuple[Array, Array, Array]:
    if not clients:
        raise FairleadError("LEAF's files hold no samples: run its script with a larger --sf")
    x, y = (np.concatenate([c[k] for c in clients]) for k in (1, 2))
    sizes = [len(c[1]) for c in clients]
    return x, y, np.repeat([number[c[0]] for c in clients], sizes)
