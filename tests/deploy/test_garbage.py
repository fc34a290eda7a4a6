"""Whatever a node sends: it is refused, logged with the node, counted as absent, and stops nothing."""

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_federation import Federation

import fairlead as fl
from fairlead.core.frame import START
from fairlead.core.message import Field, Message
from fairlead.deploy import Parcel
from fairlead.deploy.wire import Order, Reply, framed, opened

pytestmark = pytest.mark.usefixtures("quick_files")
METHODS = {
    "SCAFFOLD": fl.Scaffold(lr=0.2),
    "FedGLOMO": fl.FedGLOMO(lr=0.1, compressor=fl.QSGD(bits=4, wire="elias")),
}
Change = Callable[[Reply, Message], Reply]


def vector(name: str, values: torch.Tensor) -> Field:
    return Field.plain(name, values)


def fields(change: Callable[[Field], Field]) -> Change:
    """Change the first vector."""
    return lambda reply, m: replace(
        reply, message=replace(m, fields=(change(m.fields[0]), *m.fields[1:]))
    )


def message(**changes: Any) -> Change:
    return lambda reply, m: replace(reply, message=replace(m, **changes))


def header(**changes: Any) -> Change:
    return lambda reply, m: replace(reply, **changes)


def filled(value: float) -> Change:
    """A vector of this value; an encoded one has it as its norm."""

    def change(f: Field) -> Field:
        n = 1 if f.coded else f.d
        data = Field.plain("", torch.full((n,), value, dtype=f.dtype)).data
        return replace(f, data=data + f.data[len(data) :])

    return fields(change)


CHANGES: dict[str, Change] = {
    "NaN": filled(float("nan")),
    "infinite": filled(float("inf")),
    "longer": fields(lambda f: vector(f.name, torch.zeros(f.d + 1, dtype=f.dtype))),
    "shorter": fields(lambda f: vector(f.name, torch.zeros(f.d - 1, dtype=f.dtype))),
    "empty": fields(lambda f: vector(f.name, torch.zeros(0, dtype=f.dtype))),
    "oversize": fields(lambda f: vector(f.name, torch.zeros(1 << 17, dtype=f.dtype))),
    "another dtype": fields(lambda f: vector(f.name, torch.zeros(f.d))),
    "another name": fields(lambda f: replace(f, name="other")),
    "encoded or not": fields(lambda f: replace(f, coded=not f.coded)),
    "a coded length": fields(lambda f: replace(f, d=1 << 40, coded=True)),
    "cut": fields(lambda f: replace(f, data=f.data[:3], coded=True)),
    "twice": lambda reply, m: replace(reply, message=replace(m, fields=m.fields + m.fields[:1])),
    "no vectors": message(fields=()),
    "no upload": header(message=None),
    "an old round": message(round=-1),
    "a later round": message(round=10**6),
    "another exchange": message(exchange=5),
    "another program": message(program="__init__"),
    "another method": message(method="FedAvg"),
    "another client's message": message(client=0),
    "another client": header(client=0),
    "no client": header(client=-1),
    "another tag": header(tag="0" * 32),
    "a path as tag": header(tag="../../etc/passwd"),
    "negative gradients": header(gradients=-5),
    "too many gradients": header(gradients=10**30),
    "codes": header(codes={"dy": (99, 1, 2), "a": (7, 1, 2)}),
    "an error": header(error="no"),
}


def mutated(reply: bytes, rng: random.Random, resign: bool) -> bytes:
    """Bytes with random changes; signed again, so that the checksum does not give them away."""
    data = bytearray(reply)
    for _ in range(rng.choice([1, 1, 2, 8])):
        kind = rng.randrange(4)
        at = rng.randrange(len(data))
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randrange(1, 40)]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 40))
        else:
            data[at : at + 8] = rng.choice([b"\xff" * 8, b'"]}{[,:"', b"1e999,-1", b"Infinity"])
        if not data:
            data = bytearray(b"x")
    if resign and len(data) > START.size:
        data[10:14] = zlib.crc32(bytes(data[START.size :])).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("name", METHODS)
def test_a_thousand_malformed_replies_are_refused_and_stop_nothing(
    name: str, tmp_path: Path
) -> None:
    here, rng = Federation(tmp_path, METHODS[name]), random.Random(1)
    sent: list[str] = []
    old: list[bytes] = []

    def on_the_way(node: int, order: bytes, reply: bytes) -> list[Parcel]:
        if Order.unpack(order).message is None or node != 101:
            return [Parcel(reply)]
        real = Reply.unpack(reply)
        assert real.message is not None
        bad = {what: change(real, real.message).pack() for what, change in CHANGES.items()}
        bad |= {f"old {k}": data for k, data in enumerate(old)}
        bad |= {f"random {k}": mutated(reply, rng, False) for k in range(120)}
        bad |= {"empty": b"", "an order": order, "nested": framed({}, reply)}
        old.append(reply)
        sent.extend(bad)
        return [Parcel(data) for data in bad.values()]

    here.transport.on_the_way = on_the_way
    rounds = 7
    server = here.server()
    run = server.run(rounds)
    there = here.simulated(rounds, dropout=[[1]] * rounds)
    torch.testing.assert_close(run.state.x, there.state.x, rtol=0, atol=1e-10)
    refused = [r for r in server.roster.refused if r.node == 101]
    assert len(refused) == len(sent) >= 1000
    assert len(server.roster.refused) == len(refused)
    assert all(r.why for r in refused)


def test_replies_with_valid_checksums_but_random_contents_stop_nothing(tmp_path: Path) -> None:
    here, rng = Federation(tmp_path, METHODS["FedGLOMO"]), random.Random(2)

    def on_the_way(node: int, order: bytes, reply: bytes) -> list[Parcel]:
        if Order.unpack(order).message is None or node != 101:
            return [Parcel(reply)]
        about, body = opened(reply)
        bad = [mutated(reply, rng, True) for _ in range(100)]
        for _ in range(100):  # a whole frame around a damaged message, and the other way round
            bad.append(framed(about, mutated(body, rng, True)))
            odd = rng.choice([None, [], -1, 1e300, "x", {}])
            text = {**about, rng.choice(sorted(about)): odd}
            bad.append(framed(text, body))
        return [Parcel(data) for data in bad]

    here.transport.on_the_way = on_the_way
    server = here.server()
    run = server.run(4)
    assert run.rounds == 4
    assert len([r for r in server.roster.refused if r.node == 101]) >= 1000
    assert bool(torch.isfinite(run.state.x).all())


def test_unknown_nodes_and_wrong_clients_do_not_get_in(tmp_path: Path) -> None:
    here = Federation(tmp_path, METHODS["SCAFFOLD"])
    here.transport.handlers[7] = here.clients[0].answer  # says that it is client 0
    other = Federation(tmp_path / "other", fl.Scaffold(lr=0.3))
    here.transport.handlers[8] = other.clients[1].answer  # has agreed to something else
    here.transport.handlers[200] = lambda order: b"garbage"
    server = here.server(nodes=[100, 101, 102, 103, 8, 200])
    run = server.run(3)
    torch.testing.assert_close(run.state.x, here.simulated(3).state.x, rtol=0, atol=1e-10)
    why = {r.node: r.why for r in server.roster.refused}
    assert "not one of the nodes" in why[7]
    assert "use the same project" in why[8]
    assert set(why) == {7, 8, 200}


def test_a_second_node_cannot_be_a_client_that_is_there(tmp_path: Path) -> None:
    here = Federation(tmp_path, METHODS["SCAFFOLD"])
    here.transport.handlers[999] = here.clients[2].answer
    server = here.server()
    server.run(1)
    assert ["already there" in r.why for r in server.roster.refused] == [True]


def test_other_data_than_at_the_start_are_refused(tmp_path: Path) -> None:
    here = Federation(tmp_path, METHODS["SCAFFOLD"])
    other = Federation(tmp_path, METHODS["SCAFFOLD"], sizes=(9, 14, 12, 6))

    def exchanged(view: Any) -> None:
        here.transport.handlers[555] = other.clients[2].answer
        here.transport.handlers.pop(102, None)

    server = here.server()
    run = server.run(3, callbacks=[exchanged])
    assert run.session.accounts.counters.lost == 2
    assert any("had 11 samples" in r.why and r.node == 555 for r in server.roster.refused)


def test_the_client_tells_no_more_than_that_its_program_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Federation(tmp_path, METHODS["SCAFFOLD"])

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("patient 17")

    monkeypatch.setattr(here.clients[3].work, "run", fails)
    server = here.server()
    run = server.run(2)
    assert run.session.accounts.counters.lost == 2
    assert all("patient" not in r.why and "see its log" in r.why for r in server.roster.refused)


def test_a_client_refuses_what_is_not_for_it(tmp_path: Path) -> None:
    here = Federation(tmp_path, METHODS["SCAFFOLD"])
    client = here.clients[0]
    for data in (b"", b"garbage", Reply("0" * 32, 0).pack()):
        assert Reply.unpack(client.answer(data)).error
    seen: list[bytes] = []
    here.transport.before = lambda node, order: seen.append(order) or True
    here.server().run(1)
    order = next(o for o in seen if (m := Order.unpack(o).message) is not None and m.client == 1)
    assert "came to client 0" in Reply.unpack(client.answer(order)).error
    real = Order.unpack(order)
    for base in ("../../../etc/passwd", "f" * 32):
        told = replace(real.header, base=base, number=(2**62, 1))
        reply = Reply.unpack(here.clients[1].answer(Order(told, real.message).pack()))
        assert reply.error
    bad_run = replace(real.header, run="../x", number=(2**62, 2))
    assert Reply.unpack(here.clients[1].answer(Order(bad_run, real.message).pack())).error
    assert not (tmp_path / "x").exists()
