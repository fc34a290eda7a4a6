"""The exchange: what travels, what is counted, and that nothing is written before a commit."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from conformance import METHODS
from conftest import uneven
from torch import Tensor

import fairlead as fl
from fairlead.core.message import Field, Message
from fairlead.engine import exchange
from fairlead.engine.session import Session

WORK = {"rounds": 4, "cohort": 3, "batch_size": 4, "steps": 2, "seed": 2}
D = uneven().dim
VECTOR = 64 * D  # bits of one float64 vector


def _kept(session: Session) -> dict[str, Any]:
    """Everything that a commit may change."""
    found: dict[str, Any] = {"buffers": session.buffers.clone()}
    for place, store in enumerate(session.stores()):
        found |= {f"{place}/{name}": t.clone() for name, t in store.export().items()}
    ledger, counters = session.accounts.ledger, session.accounts.counters
    found["counts"] = (ledger.up, ledger.down, len(ledger.exchanges), vars(counters).copy())
    return found


@pytest.mark.parametrize("engine", ["vmap", "loop", fl.Simulate("vmap", memory=1)])
@pytest.mark.parametrize("name", ["scaffold", "fedavg-topk-ef", "fedcomgate", "catalyst-scaffold"])
def test_a_fault_before_the_commit_leaves_everything_as_it_was(
    name: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    class Faulty(fl.Callback):
        """After round 2 the next commit fails."""

        def round(self, view: Any) -> None:
            if view.round == 2:
                seen.update(before=_kept(view.session), session=view.session)
                monkeypatch.setattr(exchange, "commit", self.fail)

        def fail(self, *_: Any) -> None:
            seen["after"] = _kept(seen["session"])
            raise RuntimeError("between execute and commit")

    with pytest.raises(RuntimeError, match="between execute and commit"):
        fl.train(uneven(), METHODS[name], engine=engine, callbacks=[Faulty()], **WORK)
    before, after = seen["before"], seen["after"]
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert torch.equal(value, after[key]) if isinstance(value, Tensor) else value == after[key]


COUNTS = {
    "fedavg": (1, 1, 1), "scaffold": (1, 2, 2), "mime": (2, 2, 3), "mime-mvr": (2, 3, 3),
    "mime-lite": (1, 2, 2), "mime-lite-mvr": (1, 3, 3), "scaffold-s": (2, 2, 2),
    "mirror-prox": (2, 2, 2), "fedcomgate-plain": (2, 1, 2), "fedglomo": (1, 1, 2),
}  # fmt: skip
NUMBERS = {"mime-lite-mvr": (0, 1), "fedcomgate-plain": (1, 0), "fedglomo": (0, 1)}


@pytest.mark.parametrize("engine", ["vmap", "loop"])
@pytest.mark.parametrize("name", COUNTS)
def test_a_broadcast_is_sent_and_counted_once(name: str, engine: str) -> None:
    plain = {"fedcomgate-plain": fl.FedCOMGATE(lr=0.1), "mirror-prox": fl.MirrorProx(lr=0.1)}
    method = plain.get(name) or METHODS[name]
    run = fl.train(uneven(), method, rounds=2, steps=2, engine=engine)
    exchanges, up, down = COUNTS[name]
    more_up, more_down = NUMBERS.get(name, (0, 0))
    assert run.counters.exchanges == 2 * exchanges
    assert run.ledger.up == 2 * 5 * (up * VECTOR + 64 * more_up)
    assert run.ledger.down == 2 * 5 * (down * VECTOR + 64 * more_down)


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_catalysts_centre_travels_when_it_has_moved(engine: str) -> None:
    """The centre moves after rounds 2 and 4; client 3 is away until round 3, client 1 does not answer in 0."""
    cohorts = [[0, 1], [0, 1], [0, 1], [0, 3], [0, 3]]
    lost = [[1], [], [], [], []]
    method = fl.Catalyst(fl.ScaffoldS(lr=0.1), theta=0.5, inner_rounds=2)
    run = fl.train(uneven(), method, rounds=5, steps=2, cohort=cohorts, dropout=lost, engine=engine)
    first, second = run.ledger.exchanges[::2], run.ledger.exchanges[1::2]
    assert [e.down for e in first] == [VECTOR] * 5  # z
    assert [e.down for e in second] == [VECTOR] * 5  # g; z is there
    extra = [(np.zeros(2, int) + e.extra) // VECTOR for e in first]
    assert [e.tolist() for e in extra] == [[1, 1], [0, 1], [1, 1], [0, 1], [1, 1]]
    assert all(not np.any(e.extra) for e in second[1:])
    assert np.array_equal(second[0].extra // VECTOR, [0, 1])  # it has not answered yet
    whole = fl.train(uneven(), method, rounds=3, steps=2, cohort=cohorts, dropout=lost)
    rest = fl.train(uneven(), method, rounds=5, steps=2, cohort=cohorts, dropout=lost, resume=whole)
    assert rest.ledger.down == run.ledger.down  # who has which version is kept


def test_the_share_is_of_those_that_answered() -> None:
    shares: list[float] = []

    @dataclass(frozen=True)
    class Noting(fl.FedAvg):
        def round(self, s: Any, cohort: fl.Cohort) -> Any:
            up = cohort.run(self.local_steps, x=s.x)
            shares.append((up.share, up.count))
            return s

    lost = [[0], []]
    fl.train(uneven(), Noting(lr=0.1), rounds=2, steps=1, cohort=[[0, 1, 2], [3]], dropout=lost)
    assert shares == [(pytest.approx(2 / 5), 2), (pytest.approx(1 / 5), 1)]


@pytest.mark.parametrize("program", [lambda client, x: None, partial(print, 1), print])
def test_programs_are_methods_of_the_algorithm(program: Any) -> None:
    @dataclass(frozen=True)
    class Hiding(fl.FedAvg):
        def round(self, s: Any, cohort: fl.Cohort) -> Any:
            return cohort.run(program, x=s.x)

    with pytest.raises(fl.FairleadError, match="pass a method of the algorithm"):
        fl.train(uneven(), Hiding(lr=0.1), rounds=1)


def test_randomness_goes_by_identity_and_not_by_row() -> None:
    """The same clients in another order, with the numbers they had: the same run."""
    task, order = uneven(), [3, 0, 4, 1, 2]
    parts = [task.split.order[task.split.offsets[k] : task.split.offsets[k + 1]] for k in order]
    other = fl.Task(task.make, "cross_entropy", task.data, parts, l2=0.01, dtype=torch.float64)

    @dataclass(frozen=True)
    class Renamed(fl.Simulate):
        def open(self, *given: Any) -> Session:
            session = super().open(*given)
            session.identities = np.array(order)
            return session

    work = {"rounds": 3, "batch_size": 4, "epochs": 2}
    method = fl.Scaffold(lr=0.1, compressor=fl.QSGD(4))
    for mode in ("vmap", "loop"):
        one = fl.train(task, method, engine=mode, **work)
        two = fl.train(other, method, engine=Renamed(mode), **work)
        torch.testing.assert_close(two.x, one.x, rtol=0, atol=1e-12)
        states = one.client_states(order).c
        torch.testing.assert_close(two.client_states().c, states, rtol=0, atol=1e-12)
        assert (two.ledger.up, two.ledger.down) == (one.ledger.up, one.ledger.down)


def _message() -> Message:
    fields = Field.plain("dy", torch.arange(3.0)), Field.plain("moved", torch.ones(1).double())
    return Message("Scaffold", "local", 7, 1, 42, fields)


def test_messages_come_back_as_they_were() -> None:
    sent = _message()
    back = Message.unpack(sent.pack())
    assert back == sent
    assert back.bits == 8 * (3 * 4 + 8)
    assert torch.equal(back.value("dy"), torch.arange(3.0))
    assert back.value("moved").dtype == torch.float64


@pytest.mark.parametrize("by", [fl.QSGD(2), fl.QSGD(3, wire="elias"), fl.RandK(0.3), fl.TopK(0.2)])
def test_encoded_fields_are_decoded_from_bytes(by: fl.Compressor) -> None:
    from fairlead.compress import Noise
    from fairlead.core.message import Coded

    v, noise = torch.randn(2, 50, dtype=torch.float64), Noise(torch.tensor([[1, 2], [3, 4]]))
    coded = Coded(by, by.encode(v, noise), noise, 50, v.dtype)
    for client in range(2):
        sent = Message("m", "local", 0, 0, client, (Field.of("dy", coded, client),))
        back = Message.unpack(sent.pack())
        own = Noise(noise.keys[client : client + 1])
        assert torch.equal(back.value("dy", by, own), coded.value()[client])
        with pytest.raises(fl.FairleadError, match="dy is encoded"):
            back.value("dy")


def test_garbage_is_refused_in_one_sentence() -> None:
    data = _message().pack()
    for cut in range(len(data)):
        with pytest.raises(fl.FairleadError):
            Message.unpack(data[:cut])
    rng = np.random.default_rng(0)
    for _ in range(300):
        wrong = bytearray(data)
        wrong[rng.integers(len(data))] ^= 1 << rng.integers(8)
        with pytest.raises(fl.FairleadError):
            Message.unpack(bytes(wrong))
    with pytest.raises(fl.FairleadError, match="version 9"):
        Message.unpack(data[:4] + b"\x09\x00" + data[6:])
    rest = data[14:] + b"more"
    head = struct.pack("<4sHII", b"flms", 1, *struct.unpack("<I", data[6:10]), zlib.crc32(rest))
    with pytest.raises(fl.FairleadError, match="longer than its header says"):
        Message.unpack(head + rest)
