"""Run by the tests of the distribute engine, once a rank: trains every case and writes what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from conformance import METHODS
from conftest import uneven
from safetensors.torch import save_file

import fairlead as fl

WORK = {"rounds": 5, "cohort": 3, "batch_size": 4, "epochs": 2, "dropout": 0.25, "seed": 11}
RAGGED = {**WORK, "epochs": None, "steps": [1, 5, 3, 4, 2], "weighting": "size", "drift": True}
LOOP = ("scaffold", "fedavg-topk-ef", "fedglomo-qsgd", "catalyst-decrease")


def normed() -> fl.Task:
    """A model with BatchNorm, whose statistics travel too."""
    x = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(torch.linspace(-0.5, 0.4, p.numel()).reshape(p.shape) + 0.01 * k)
    parts = [range(k, k + 10) for k in (0, 10, 20, 30)]
    y = torch.arange(40) % 3
    return fl.Task(net, "cross_entropy", (x, y), parts, test=(x, y), dtype=torch.float64)


def cases(device: str = "cpu") -> dict[str, tuple]:
    """Name → task, method, mode, settings."""
    if device != "cpu":
        return {name: (uneven(device), METHODS[name], "vmap", RAGGED) for name in LOOP}
    found = {name: (uneven(), method, "vmap", RAGGED) for name, method in METHODS.items()}
    found |= {f"{name} loop": (uneven(), METHODS[name], "loop", WORK) for name in LOOP}
    clients = {"per_client": fl.PerClient(steps=2, batch_size=3)}
    found["one client"] = (uneven(), METHODS["scaffold"], "vmap", {**WORK, "cohort": 1, **clients})
    steps = {"rounds": 4, "cohort": 3, "batch_size": 5, "steps": 2}
    found["statistics"] = (normed(), METHODS["scaffold"], "loop", steps)
    game = fl.problems.saddle_regression(s=2, clients=5)
    found["game"] = (game, METHODS["catalyst-scaffold-s"], "vmap", {"rounds": 4, "steps": 3})
    only = {(0, 1): [[0, 1], [2]], (1, 2): [[0, 4]], (2, 0): [[3]]}
    replayed = {"rounds": 3, "cohort": [[1], [2], [0]], "batches": only}
    found["replayed"] = (uneven(), METHODS["scaffold"], "loop", replayed)
    noisy = uneven()
    noisy = noisy.replace(noise=0.1)
    found["noise"] = (
        noisy,
        METHODS["fedavg"],
        "vmap",
        {**WORK, "epochs": None, "steps": fl.Geometric(0.4)},
    )
    found["target"] = (
        uneven(),
        METHODS["scaffold"],
        "auto",
        {**WORK, "rounds": 40, "target": {"loss": 0.9}},
    )
    return found


def written(run: fl.Run, name: str, folder: Path) -> None:
    """What is compared."""
    tensors = {f"state/{k}": t.cpu().clone().contiguous() for k, t in run.state.tensors().items()}
    tensors["buffers"] = run.session.buffers.cpu().clone()
    save_file(tensors, folder / f"{name}.safetensors")
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in run.history.rows]
    counts = {**run.counters.__dict__, "up": run.ledger.up, "down": run.ledger.down,
              "nominal": run.ledger.nominal_up, "stopped": run.stopped, "rounds": run.rounds}  # fmt: skip
    each = [run.ledger.exchanges[k].up.tolist() for k in range(len(run.ledger.exchanges))]
    (folder / f"{name}.json").write_text(json.dumps({"rows": rows, "counts": counts, "each": each}))


def main(folder: Path, what: str, device: str = "cpu", **engine) -> int:
    """Train all cases, or those whose names, with commas between them, are given; returns this rank."""
    wanted, rank = what.split(","), -1
    for name, (task, method, mode, settings) in cases(device).items():
        if what != "all" and name not in wanted:
            continue
        setting = fl.Distributed(mode, **engine)
        run = fl.train(task, method, engine=setting, **settings)
        rank = run.session.group.ranks.rank
        place = folder / str(rank)
        place.mkdir(exist_ok=True)
        written(run, name, place)
        store = run.session.states.store
        if store is not None:
            rows = {k: t.cpu().contiguous() for k, t in store.export().items()}
            save_file(rows, place / f"{name}.rows")
    return rank


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], **json.loads(sys.argv[3]))
