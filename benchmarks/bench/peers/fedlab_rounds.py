"""FedAvg rounds in FedLab's standalone pipeline, run by FedLab's own interpreter; see `plain`.

FedLab trains one client after the other in one process. Its data set hands out batches that were cut
once; a DataLoader, as in its tutorials, would gather them sample by sample.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import importlib
import sys
import time
from types import ModuleType
from typing import Any


def without_torchvision() -> None:
    """FedLab imports torchvision for data sets that nothing here uses; without it, an empty one."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        for name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
            sys.modules[name] = ModuleType(name)
        for name in ("transforms", "datasets"):
            vars(sys.modules["torchvision"])[name] = sys.modules[f"torchvision.{name}"]


def begin(work: dict[str, Any]) -> Any:
    """Set FedLab up as its tutorials do."""
    without_torchvision()
    import logging

    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from fedlab.core.standalone import StandalonePipeline
    from plain import Runner, between, data, flat, model

    logging.getLogger().setLevel(logging.WARNING)

    class Users(FedDataset):
        def __init__(self) -> None:
            super().__init__()
            size = work["batch"]
            self.batches = [
                list(zip(x.split(size), y.split(size), strict=True))
                for x, y in zip(*data(work), strict=True)
            ]

        def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> Any:
            return self.batches[id]

    class Timed(StandalonePipeline):
        def evaluate(self) -> None:  # called at the end of a round
            marks.append(time.perf_counter())

    marks: list[float] = []
    server = SyncServerHandler(model(work), global_round=1, sample_ratio=1.0)
    clients = SGDSerialClientTrainer(model(work), work["clients"])
    clients.setup_dataset(Users())
    clients.setup_optim(epochs=1, batch_size=work["batch"], lr=work["lr"])
    pipeline = Timed(server, clients)

    def run(rounds: int) -> list[float]:
        server.round, server.global_round = 0, rounds
        marks[:] = [time.perf_counter()]
        pipeline.main()
        return between(marks)

    return Runner(run, lambda: flat(server.model.parameters()))


if __name__ == "__main__":
    from importlib.metadata import version

    from plain import serve

    serve(begin, version("fedlab"))
