"""Messages: the bits that are counted are those of the bytes that are made."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from conformance import METHODS
from conftest import uneven

import fairlead as fl
from fairlead.core.message import Message
from fairlead.engine.state.outbox import Outbox

COMPRESSORS = [fl.QSGD(2), fl.QSGD(2, wire="elias"), fl.RandK(0.2), fl.BFloat16(), fl.TopK(0.1)]
RUN = {"rounds": 2, "cohort": [[0, 2, 4], [1, 2, 3]], "dropout": [[2], []], "batch_size": 6}


def _compressed() -> list[tuple[str, fl.Algorithm]]:
    rows = list(METHODS.items())
    for name, method in METHODS.items():
        if "compressor" in {f.name for f in dataclasses.fields(method)}:
            picky = isinstance(method, fl.FedGLOMO | fl.FedCOMGATE)
            allowed = [q for q in COMPRESSORS if q.unbiased or not picky]
            rows += [(f"{name}-{q}", dataclasses.replace(method, compressor=q)) for q in allowed]
    return rows


@pytest.mark.parametrize("method", [pytest.param(m, id=n) for n, m in _compressed()])
@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_counted_bits_are_eight_times_the_bytes(method, engine: str, monkeypatch) -> None:
    """Every upload of a run is really packed, beside the count."""
    made: list[int] = []
    count = Outbox.bits

    def packed(self, upload):
        exact, nominal = count(self, upload)
        rows = max((v.shape[0] for v in upload.tensors().values() if v.dim() == 2), default=1)
        for i in range(rows):
            message = Message("m", "local", 1, 2, i, self.fields(upload, i))
            assert message.bits == (exact if isinstance(exact, int) else int(exact[i]))
            assert Message.unpack(message.pack()) == message
            made.append(message.bits)
        return exact, nominal

    monkeypatch.setattr(Outbox, "bits", packed)
    run = fl.train(uneven(dtype=torch.float32), method, engine=engine, **RUN)
    assert run.ledger.up == sum(made)
    assert all(isinstance(n, int) for n in (run.ledger.up, run.ledger.down))
