"""FedAvg rounds in Flower's simulation, run by Flower's own interpreter; see `plain`.

Ray gives every client one core, and every actor keeps model and data in memory between messages. Two
ways are there: `run_simulation` with the message API, which asks every tenth of a second whether there
is something to do, and `start_simulation`, older and deprecated, which does not wait.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import time
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn


@cache
def kept(work: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Model and data, made once in each of Ray's processes."""
    from plain import data, model

    torch.set_num_threads(1)
    return model(json.loads(work)), data(json.loads(work))


def local_steps(work: str, client: int, weights: dict[str, Tensor]) -> nn.Module:
    """The steps of one client."""
    settings, (model, (x, y)) = json.loads(work), kept(work)
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"])
    size = settings["batch"]
    for a, b in zip(x[client].split(size), y[client].split(size), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    return model


def train(message: Any, context: Any) -> Any:
    """What a client does, in the message API."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    work = str(message.content["config"]["work"])
    client = int(context.node_config["partition-id"])
    model = local_steps(work, client, message.content["arrays"].to_torch_state_dict())
    reply = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


def client_fn(context: Any) -> Any:
    """What a client does, in the older API."""
    from flwr.client import NumPyClient

    class Clients(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            work = str(config["work"])
            names = kept(work)[0].state_dict()
            weights = {n: torch.from_numpy(p) for n, p in zip(names, parameters, strict=True)}
            model = local_steps(work, int(context.node_config["partition-id"]), weights)
            return [p.numpy() for p in model.state_dict().values()], 1, {}

    return Clients().to_client()


def begin(work: dict[str, Any]) -> Any:
    """Each turn is a simulation of its own, whose first rounds are not counted."""
    from plain import Runner, between, flat, model

    written, start = json.dumps(work), model(work).state_dict()
    cores, found = os.cpu_count() or 1, {"x": list(start.values())}
    extra = 0 if work.get("exact") else 2
    simulate = with_messages if work.get("messages") else older

    def run(rounds: int) -> list[float]:
        marks, found["x"] = simulate(work, written, start, rounds + extra, cores)
        return between(marks[extra:])

    return Runner(run, lambda: flat(found["x"]))


def with_messages(
    work: dict[str, Any], written: str, start: dict[str, Tensor], rounds: int, cores: int
) -> tuple[list[float], list[Tensor]]:
    """`run_simulation`, timed in the strategy."""
    import flower_rounds  # by its name, for Ray's processes to import it
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    marks: list[float] = []
    last: list[Any] = []

    class Timed(FedAvg):
        def configure_train(self, *given: Any, **named: Any) -> Any:
            marks.append(time.perf_counter())
            return super().configure_train(*given, **named)

    server, clients = ServerApp(), ClientApp()
    clients.train()(flower_rounds.train)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        n = work["clients"]  # all of them, also in the first round, when not all are there yet
        strategy = Timed(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
        config = ConfigRecord({"work": written})
        result = strategy.start(grid, ArrayRecord(start), rounds, train_config=config)
        marks.append(time.perf_counter())
        last.extend(result.arrays.to_torch_state_dict().values())

    run_simulation(
        server, clients, work["clients"],
        backend_config={
            "init_args": {"num_cpus": cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )  # fmt: skip
    return marks, last


def older(
    work: dict[str, Any], written: str, start: dict[str, Tensor], rounds: int, cores: int
) -> tuple[list[float], list[Tensor]]:
    """`start_simulation`, timed in the strategy."""
    import flower_rounds
    import ray
    from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server import ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import start_simulation

    marks: list[float] = []
    last: list[Any] = []

    class Timed(FedAvg):
        def configure_fit(self, *given: Any, **named: Any) -> Any:
            marks.append(time.perf_counter())
            return super().configure_fit(*given, **named)

        def aggregate_fit(self, *given: Any, **named: Any) -> Any:
            found = super().aggregate_fit(*given, **named)
            last[:] = [found[0], time.perf_counter()]
            return found

    n = work["clients"]
    start_simulation(
        client_fn=flower_rounds.client_fn, num_clients=n, config=ServerConfig(num_rounds=rounds),
        client_resources={"num_cpus": 1, "num_gpus": 0.0},
        ray_init_args={"num_cpus": cores, "include_dashboard": False},
        strategy=Timed(
            fraction_evaluate=0.0, min_fit_clients=n, min_available_clients=n, inplace=True,
            initial_parameters=ndarrays_to_parameters([p.numpy() for p in start.values()]),
            on_fit_config_fn=lambda _: {"work": written},
        ),
    )  # fmt: skip
    ray.shutdown()
    weights, end = last
    return [*marks, end], [torch.from_numpy(p) for p in parameters_to_ndarrays(weights)]


if __name__ == "__main__":
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")
    import flwr
    from plain import serve

    serve(begin, flwr.__version__)
