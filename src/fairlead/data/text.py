"""Text as character codes: windows with their next character, and generated dialects."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.data.sources import Dataset
from fairlead.errors import FairleadError, positive


def windows(codes: NDArray[np.integer], length: int, stride: int = 1) -> tuple[Tensor, Tensor]:
    """Every `stride`-th run of `length` codes, and the code after it.

    >>> windows(np.array([3, 1, 4, 1, 5]), 2)
    (tensor([[3, 1],
            [1, 4],
            [4, 1]], dtype=torch.uint8), tensor([4, 1, 5]))
    """
    if len(codes) <= length:
        raise FairleadError(
            f"the text has {len(codes)} characters: windows of {length} need at least {length + 1}"
        )
    if codes.min() < 0 or codes.max() > 255:
        raise FairleadError("character codes must be from 0 to 255: use a smaller alphabet")
    seen = np.lib.stride_tricks.sliding_window_view(codes[:-1], length)[::stride]
    after = codes[length::stride]
    return torch.tensor(seen, dtype=torch.uint8), torch.tensor(after, dtype=torch.int64)


def encode(text: str, alphabet: str) -> NDArray[np.int64]:
    """The index of every character in the alphabet; unknown characters get the last code.

    >>> encode("abca!", "abc")
    array([0, 1, 2, 0, 3])
    """
    index = {character: code for code, character in enumerate(alphabet)}
    return np.array([index.get(character, len(alphabet)) for character in text], dtype=np.int64)


def dialects(
    clients: int = 20,
    difference: float = 0.3,
    length: int = 600,
    window: int = 8,
    characters: int = 12,
    sharpness: float = 3.0,
    seed: int = 0,
) -> Dataset:
    """Generated text for next-character prediction: each client has `length` characters, each drawn
    given the two before it. The odds mix common ones with the client's own, in the share
    `difference`. The last tenth of every client's text is test data."""
    if not 0 <= difference <= 1:
        raise FairleadError(f"difference is {difference}: it must be in [0, 1]")
    positive("sharpness", sharpness)
    positive("clients", clients)
    rng = np.random.default_rng(seed)
    shape = (characters, characters, characters)
    common = rng.normal(size=shape)
    texts = np.zeros((clients, length), dtype=np.int64)
    for client in range(clients):
        own = (1 - difference) * common + difference * rng.normal(size=shape)
        odds = np.exp(sharpness * own / np.sqrt((1 - difference) ** 2 + difference**2))
        ends = np.cumsum(odds / odds.sum(-1, keepdims=True), -1)
        draws = rng.random(length)
        a = b = 0
        for k in range(length):
            a, b = b, min(int(np.searchsorted(ends[a, b], draws[k])), characters - 1)
            texts[client, k] = b
    cut = length - max(window + 1, length // 10)
    if cut <= window:
        raise FairleadError(f"the texts have {length} characters: use more than {3 * window}")
    train = [windows(text[:cut], window) for text in texts]
    test = [windows(text[cut:], window) for text in texts]
    groups = torch.arange(clients)
    return Dataset(
        "dialects",
        *(torch.cat(parts) for parts in zip(*train, strict=True)),
        *(torch.cat(parts) for parts in zip(*test, strict=True)),
        groups=groups.repeat_interleave(len(train[0][1])),
        groups_test=groups.repeat_interleave(len(test[0][1])),
    )
