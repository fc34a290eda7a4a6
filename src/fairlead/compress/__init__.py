"""Compressors, one file per family."""

from __future__ import annotations

from typing import Any

from fairlead.compress.base import BFloat16, Code, Compressor, Identity, Noise, from_raw, raw
from fairlead.compress.feedback import ErrorFeedback
from fairlead.compress.qsgd import QSGD
from fairlead.compress.sparse import RandK, TopK
from fairlead.errors import FairleadError, unknown

__all__ = [
    "COMPRESSORS", "QSGD", "BFloat16", "Code", "Compressor", "ErrorFeedback", "Identity", "Noise",
    "RandK", "TopK", "from_raw", "parse", "raw",
]  # fmt: skip

COMPRESSORS: dict[str, type[Compressor]] = {
    "identity": Identity,
    "bfloat16": BFloat16,
    "qsgd": QSGD,
    "topk": TopK,
    "randk": RandK,
}


def parse(text: str | None) -> Compressor | None:
    """A compressor from its command-line form: qsgd:2, qsgd:2:elias, topk:0.01:ef, randk:100.

    >>> parse("topk:0.1:ef")
    ErrorFeedback(inner=TopK(k=0.1))
    """
    if text is None:
        return None
    name, *rest = text.split(":")
    if name not in COMPRESSORS:
        raise unknown("compressor", name, COMPRESSORS)
    feedback = "ef" in rest
    words = [word for word in rest if word != "ef"]
    arguments: list[Any] = []
    try:
        if name == "qsgd":
            arguments = [int(words[0]) if words else 2, None, *words[1:]]
        else:
            arguments = [int(word) if word.isdigit() else float(word) for word in words]
        compressor = COMPRESSORS[name](*arguments)
    except (ValueError, TypeError) as error:
        raise FairleadError(
            f"cannot parse the compressor '{text}': write for example qsgd:2, qsgd:2:elias, "
            "topk:0.01:ef, randk:100 or bfloat16"
        ) from error
    return ErrorFeedback(compressor) if feedback else compressor
