"""Seconds for a round of 4 clients with a 10 MB model, deployed, beside Flower's own FedAvg with the same model and steps.

Both run on the same SuperLink and SuperNodes with TLS and node keys, in turns:
    make test-deploy once, then .venv-deploy/bin/python benchmarks/deploy_rounds.py --turns 3 --rounds 6
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from flower_processes import Processes, processes

SETTINGS = """
    import torch
    from torch import nn
    import fairlead as fl
    from fairlead.deploy import Agreement

    WIDTH, STEPS, LR = {width}, 2, 0.01
    agreement = Agreement(fl.FedAvg(lr=LR), {clients}, fl.Batches(batch_size=16, steps=STEPS))

    def model():
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10))

    def data(client):
        generator = torch.Generator().manual_seed(client)
        return torch.randn(32, WIDTH, generator=generator), torch.arange(32) % 10

    def task(client=99):
        return fl.Task(model, "cross_entropy", data(client), [range(32)])
"""
OURS = """
    import json, time
    from fairlead.deploy.flower import client_app, server_app
    from federation.settings import agreement, task

    ends = [time.time()]

    def done(run):
        with open({result!r}, "w") as file:
            json.dump(ends, file)

    server = server_app(agreement, task, then=done, callbacks=[lambda view: ends.append(time.time())])
    client = client_app(agreement, task)
"""
FLOWERS = """
    import json, time
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from torch.nn import functional as F
    from federation.settings import LR, STEPS, data, model

    server = ServerApp()
    client = ClientApp()

    @server.main()
    def main(grid, context):
        ends = [time.time()]

        class Timed(FedAvg):
            def aggregate_train(self, *given):
                found = super().aggregate_train(*given)
                ends.append(time.time())
                return found

        strategy = Timed(fraction_evaluate=0.0, min_train_nodes={clients}, min_available_nodes={clients})
        arrays = ArrayRecord(model().state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=int(context.run_config["rounds"]))
        with open({result!r}, "w") as file:
            json.dump(ends, file)

    @client.train()
    def train(message, context):
        net = model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        inputs, labels = data(int(context.node_config["client"]))
        optimizer = torch.optim.SGD(net.parameters(), lr=LR)
        for k in range(STEPS):
            at = slice(16 * k, 16 * k + 16)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[at]), labels[at]).backward()
            optimizer.step()
        content = RecordDict({{"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({{"num-examples": 32}})}})
        return Message(content, reply_to=message)
"""


def rounds_of(there: Processes, apps: str, rounds: int, known: dict[str, object]) -> list[float]:
    """Seconds of every round but the first, which also waits for the nodes."""
    result = there.folder / "ends.json"
    result.unlink(missing_ok=True)
    filled = {"settings": SETTINGS, "apps": apps}
    there.write(**{n: text.format(result=str(result), **known) for n, text in filled.items()})
    there.submit(rounds=rounds)
    there.wait(lambda: result.exists() and result.read_text().endswith("]"), "link")
    ends = json.loads(result.read_text())
    return [b - a for a, b in pairwise(ends[1:])]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=10.0)
    given = parser.parse_args()
    known = {"width": round((given.megabytes * 1e6 / 4) ** 0.5), "clients": given.clients}
    seconds: dict[str, list[float]] = {"fairlead": [], "Flower": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        processes(Path(folder), given.clients) as there,
    ):
        there.link()
        there.register()
        there.nodes()
        for turn in range(given.turns):
            for name, apps in (("fairlead", OURS), ("Flower", FLOWERS))[
                :: 1 if turn % 2 == 0 else -1
            ]:
                found = rounds_of(there, apps, given.rounds, known)
                seconds[name] += found
                print(f"turn {turn}, {name}: " + " ".join(f"{s:.2f}" for s in found), flush=True)
    ours, flowers = (statistics.median(seconds[name]) for name in seconds)
    size = f"{given.clients} clients, {given.megabytes:g} MB"
    print(
        f"{size}: fairlead {ours:.2f} s, Flower's FedAvg {flowers:.2f} s, ratio {ours / flowers:.2f}"
    )


if __name__ == "__main__":
    main()
