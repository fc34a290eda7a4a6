"""Faults: the round goes on with those who answered, and c is the mean of the clients' c_i again."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from small_federation import Federation

import fairlead as fl
from fairlead.deploy import Parcel, Patience, Server
from fairlead.deploy.client_folder import ClientFolder
from fairlead.deploy.wire import Order, tag_of

pytestmark = pytest.mark.usefixtures("quick_files")
SCAFFOLD = fl.Scaffold(lr=0.2)


def check_invariant(here: Federation, server: Server, c: torch.Tensor) -> None:
    """c == mean(c_i), over the states that count."""
    kept = [state.get("memory/c", torch.zeros_like(c)) for state in here.states(server)]
    torch.testing.assert_close(torch.stack(kept).mean(0), c, rtol=0, atol=1e-12)


def round_of(order: bytes) -> int:
    message = Order.unpack(order).message
    return -1 if message is None else message.round


def lost(rounds: list[list[int]]) -> Any:
    """Lose the replies of the listed clients in each round."""

    def on_the_way(node: int, order: bytes, reply: bytes) -> list[Parcel]:
        k = round_of(order)
        gone = k >= 0 and node - 100 in rounds[k]
        return [] if gone else [Parcel(reply)]

    return on_the_way


GONE = [[1], [], [0, 3], [1, 2, 3], []]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", [SCAFFOLD, fl.Mime(lr=0.1)], ids=["SCAFFOLD", "Mime"])
def test_lost_clients_are_those_of_a_simulation_with_dropouts(
    when: str, method: fl.Algorithm[Any, Any], tmp_path: Path
) -> None:
    here = Federation(tmp_path, method)
    if when == "after":  # the client has done its work, and rolls it back on the next contact
        here.transport.on_the_way = lost(GONE)
    else:
        here.transport.before = lambda node, order: (
            round_of(order) < 0 or node - 100 not in GONE[round_of(order)]
        )
    server = here.server()
    run = server.run(len(GONE))
    there = here.simulated(len(GONE), dropout=GONE)
    torch.testing.assert_close(run.state.x, there.state.x, rtol=0, atol=1e-10)
    assert list(run.history["clients"]) == [0, 3, 4, 2, 1, 4]
    assert run.history.last("bits_up") == there.history.last("bits_up")
    assert run.session.accounts.counters.lost == 6
    if method is SCAFFOLD:
        check_invariant(here, server, run.state.c)


def test_a_client_that_dies_during_its_work(tmp_path: Path) -> None:
    here = Federation(tmp_path, SCAFFOLD)
    answer = here.clients[2].answer

    def dies(order: bytes) -> bytes:
        if round_of(order) == 1:
            real = ClientFolder.answered
            ClientFolder.answered = _raise  # its state is written, its reply is not
            try:
                with pytest.raises(ConnectionError):
                    here.clients[2]._answer(order, tag_of(order))
            finally:
                ClientFolder.answered = real
            here.start(2)
            raise ConnectionError
        return answer(order)

    here.transport.handlers[102] = dies
    server = here.server()
    run = server.run(4)
    there = here.simulated(4, dropout=[[], [2], [], []])
    torch.testing.assert_close(run.state.x, there.state.x, rtol=0, atol=1e-10)
    check_invariant(here, server, run.state.c)


def _raise(*_: Any) -> None:
    raise ConnectionError


def test_repeated_and_late_replies_count_once_or_not_at_all(tmp_path: Path) -> None:
    here = Federation(tmp_path, SCAFFOLD)

    def on_the_way(node: int, order: bytes, reply: bytes) -> list[Parcel]:
        if round_of(order) == 1 and node == 101:
            return [Parcel(reply, 15.0)]  # past the deadline: it comes in a later round
        return [Parcel(reply), Parcel(reply, 0.5), Parcel(reply, 12.0)]

    here.transport.on_the_way = on_the_way
    server = here.server()
    run = server.run(5)
    there = here.simulated(5, dropout=[[], [1], [], [], []])
    torch.testing.assert_close(run.state.x, there.state.x, rtol=0, atol=1e-10)
    check_invariant(here, server, run.state.c)
    assert any("late" in r.why for r in server.roster.refused)


def test_repeated_orders_are_carried_out_once(tmp_path: Path) -> None:
    here = Federation(tmp_path, SCAFFOLD)
    answer, seen = here.clients[0].answer, []

    def again(order: bytes) -> bytes:
        """All earlier orders come again, around the present one."""
        early = [answer(old) for old in seen]
        reply = answer(order)
        assert answer(order) == reply
        seen.append(order)
        assert all(len(r) < 1000 or o == order for r, o in zip(early, seen, strict=False))
        for old in seen[:-1]:
            answer(old)
        return reply

    here.transport.handlers[100] = again
    server = here.server()
    run = server.run(4)
    torch.testing.assert_close(run.state.x, here.simulated(4).state.x, rtol=0, atol=1e-10)
    check_invariant(here, server, run.state.c)


def test_a_restarted_client_goes_on_from_its_folder(tmp_path: Path) -> None:
    here = Federation(tmp_path, fl.Mime(lr=0.1))  # it also holds vectors between two exchanges

    def before(node: int, order: bytes) -> bool:
        here.start(node - 100)
        return True

    here.transport.before = before
    run = here.server().run(3)
    torch.testing.assert_close(run.state.x, here.simulated(3).state.x, rtol=0, atol=1e-10)


def test_a_client_without_the_vectors_of_the_round_gets_them_again(tmp_path: Path) -> None:
    here = Federation(tmp_path, fl.Mime(lr=0.1))

    def before(node: int, order: bytes) -> bool:
        for path in here.folder.glob("client-1/*/held.safetensors"):
            path.unlink()
        return True

    here.transport.before = before
    server = here.server()
    run = server.run(3)
    torch.testing.assert_close(run.state.x, here.simulated(3).state.x, rtol=0, atol=1e-10)
    assert server.remote is not None
    assert server.remote.payload_down > run.history.last("bits_down")


def test_a_client_that_lost_its_state_is_refused(tmp_path: Path) -> None:
    here = Federation(tmp_path, SCAFFOLD)

    def before(node: int, order: bytes) -> bool:
        if round_of(order) == 2 and node == 101:
            for path in here.folder.glob("client-1/*/*.safetensors"):
                path.unlink()
        return True

    here.transport.before = before
    server = here.server()
    run = server.run(4)
    there = here.simulated(4, dropout=[[], [], [1], [1]])
    torch.testing.assert_close(run.state.x, there.state.x, rtol=0, atol=1e-10)
    assert any("restore its folder" in r.why for r in server.roster.refused)


@pytest.mark.parametrize("every", [1, 2])
def test_a_server_that_starts_again_goes_on_with_the_same_clients(
    every: int, tmp_path: Path
) -> None:
    """It dies after round 3 and 4, of which it may know only the checkpoint of round 2."""
    here = Federation(tmp_path / "clients", SCAFFOLD)
    kept = fl.Checkpoints(tmp_path / "server", every=every)

    def dies(view: Any) -> None:
        if view.round == 3:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        here.server().run(6, checkpoints=kept, callbacks=[dies])
    for client in range(4):
        here.start(client)
    server = here.server()
    run = server.run(6, checkpoints=kept, resume=kept.folder)
    torch.testing.assert_close(run.state.x, here.simulated(6).state.x, rtol=0, atol=1e-10)
    check_invariant(here, server, run.state.c)


def test_a_run_is_resumed_while_a_client_is_away(tmp_path: Path) -> None:
    here = Federation(tmp_path / "clients", SCAFFOLD)
    kept, sizes = fl.Checkpoints(tmp_path / "server", every=1), tmp_path / "clients.json"
    here.server(remember=sizes).run(2, checkpoints=kept)
    del here.transport.handlers[102]
    server = here.server(remember=sizes)
    run = server.run(4, checkpoints=kept, resume=kept.folder)
    there = here.simulated(4, dropout=[[], [], [2], [2]])
    torch.testing.assert_close(run.state.x, there.state.x, rtol=0, atol=1e-10)
    check_invariant(here, server, run.state.c)


def test_a_client_keeps_few_states(tmp_path: Path) -> None:
    here = Federation(tmp_path / "clients", SCAFFOLD)
    here.server().run(9, checkpoints=fl.Checkpoints(tmp_path / "server", every=2))
    states = list(here.folder.glob("client-0/*/*.safetensors"))
    assert 1 <= len(states) <= 6  # three checkpoints, the last state, the pending one, held vectors


def test_too_few_clients_are_waited_for_and_asked_again(tmp_path: Path) -> None:
    here = Federation(tmp_path, SCAFFOLD)
    tries: list[int] = []

    def before(node: int, order: bytes) -> bool:
        """Client 3 gets no order of round 1 before it is asked for the third time."""
        if round_of(order) == 1 and node == 103:
            tries.append(node)
            return len(tries) > 2
        return True

    here.transport.before = before
    run = here.server(patience=Patience(deadline=5, least=4, limit=100)).run(3)
    torch.testing.assert_close(run.state.x, here.simulated(3).state.x, rtol=0, atol=1e-10)
    assert len(tries) == 3


def test_the_run_gives_up_in_the_end(tmp_path: Path) -> None:
    here = Federation(tmp_path, SCAFFOLD)
    here.transport.before = lambda node, order: round_of(order) < 1 or node != 103
    with pytest.raises(fl.FairleadError, match="3 clients have answered in round 1"):
        here.server(patience=Patience(deadline=5, least=4, limit=20)).run(3)


def test_missing_clients_are_named_before_the_run(tmp_path: Path) -> None:
    here = Federation(tmp_path, SCAFFOLD)
    del here.transport.handlers[103]
    with pytest.raises(fl.FairleadError, match="3 of 4 clients have come"):
        here.server().run(1)


def test_chaos(tmp_path: Path) -> None:
    """Six clients, thirty rounds: lost, repeated and late messages, restarts of clients under other nodes and of
    the server. It ends, and c is the mean of the c_i that count."""
    rng = random.Random(0)
    sizes = (9, 14, 11, 6, 8, 5)
    here = Federation(tmp_path / "clients", SCAFFOLD, sizes=sizes)
    nodes = {client: 100 + client for client in range(6)}

    def before(node: int, order: bytes) -> bool:
        if rng.random() < 0.05:  # a client starts again, as another node
            client = next(c for c, n in nodes.items() if n == node)
            here.transport.handlers.pop(node)
            here.start(client)
            moved = here.transport.handlers.pop(100 + client)
            nodes[client] = max(nodes.values()) + 1000
            here.transport.handlers[nodes[client]] = moved
            return False
        return rng.random() > 0.1

    def on_the_way(node: int, order: bytes, reply: bytes) -> list[Parcel]:
        after = [rng.choice([0.0, 1.0, 12.0, 40.0]) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]
        return [Parcel(reply, a) for a in after]

    here.transport.before, here.transport.on_the_way = before, on_the_way
    kept = fl.Checkpoints(tmp_path / "server", every=1)
    done = 0
    patience = Patience(deadline=10, least=2, limit=10_000)
    while done < 30:
        stop = done + rng.randint(3, 9)

        def dies(view: Any, stop: int = stop) -> None:
            if view.round == stop:
                raise ConnectionError

        server = here.server(patience=patience)
        resume = kept.folder if done else None
        try:
            run = server.run(30, checkpoints=kept, resume=resume, callbacks=[dies])
            done = run.rounds
        except ConnectionError:
            done = stop - 1
    assert run.rounds == 30
    check_invariant(here, server, run.state.c)
    assert run.session.accounts.counters.lost > 0
    assert float(run.state.x.abs().max()) < 100
