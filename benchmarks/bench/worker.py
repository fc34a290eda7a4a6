"""The process of a contestant of our own: `python -m bench.worker`; see `peers.plain`."""

from __future__ import annotations

import torch

import fairlead
from bench import bare, ours
from bench.peers.plain import Runner, Work, serve


def begin(work: Work) -> Runner:
    """The hand-written loop, or fairlead."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return (bare if work["who"] == "bare loop" else ours).begin(work)


if __name__ == "__main__":
    serve(begin, fairlead.__version__)
