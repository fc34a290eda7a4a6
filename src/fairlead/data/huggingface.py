"""Columns of Hugging Face datasets as arrays: numbers, images, token lists, and text through a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fairlead.data.datasets import IGNORED, MASK, stacked, stacked_inputs, with_masks
from fairlead.data.formats import channels_first
from fairlead.errors import FairleadError

Tokenizer = Callable[..., Any]
"""Text, or several texts, to token numbers: a list, or a dict of lists as tokenizers of `transformers` return it."""


def columns(
    dataset: Any,
    inputs: str | Sequence[str],
    target: str,
    more: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    padding: int = 0,
) -> list[Any]:
    """The inputs, the target and more columns of a dataset.

    inputs: one column, or several that the model takes by name. tokenizer: makes tokens of text, of all input columns
    together. padding: the token at the end of shorter lists.
    """
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    made = [MASK] if MASK in names and MASK not in dataset.column_names else []
    read = [name for name in names if name not in made]
    for name in (*read, target, *more):
        if name not in dataset.column_names:
            raise FairleadError(
                f"the dataset has no column '{name}': it has {', '.join(dataset.column_names)}"
            )
    table = dataset.select_columns(list(dict.fromkeys([*read, target, *more])))
    table = table.with_format("numpy")[:]
    if tokenizer is not None:
        rows = zip(*([str(text) for text in table[name]] for name in read), strict=True)
        found = _tokens([tokenizer(*row) for row in rows], padding)
    else:
        arrays = {name: _column(dataset, table, name, padding) for name in read}
        found = with_masks(arrays) if not isinstance(inputs, str) else _alone(arrays[inputs])
    return [found, stacked(list(table[target]), IGNORED)[0], *(table[name] for name in more)]


def _alone(column: tuple[Any, Any]) -> Any:
    """One input, with its mask if it was padded."""
    whole, mask = column
    return whole if mask is None else (whole, mask)


def _column(dataset: Any, table: Any, name: str, padding: int) -> tuple[Any, Any]:
    if len(table[name]) and isinstance(table[name][0], str):
        raise FairleadError(
            f"the column '{name}' holds text: give a tokenizer, a function from text to a list of token numbers"
        )
    whole, mask = stacked(list(table[name]), 0 if name == MASK else padding)
    feature = dataset.features[name]
    if (
        getattr(feature, "dtype", "") == "uint8" and whole.ndim > 2
    ):  # numpy's format makes them int64
        whole = np.asarray(whole).astype(np.uint8)
    return channels_first(whole), mask


def _tokens(rows: Sequence[Any], padding: int) -> Any:
    plain = [dict(row) if isinstance(row, Mapping) else np.asarray(row) for row in rows]
    return stacked_inputs(plain, padding)
