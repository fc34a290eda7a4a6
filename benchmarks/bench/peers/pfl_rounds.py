"""FedAvg rounds in pfl, run by pfl's own interpreter; see `plain`.

The users' data are tensors in memory and are cut into batches once. One process runs all users, or
several (PFL_WORKER_ADDRESSES, PFL_WORKER_RANK) share them by pfl's torch.distributed backend.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn


def begin(work: dict[str, Any]) -> Any:
    """Set pfl up as its tutorials do."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from plain import Runner, between, data, flat, held_out, model

    class Trained(nn.Module):
        """A model with the two functions that pfl asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model(work)

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            self.train()
            return nn.functional.cross_entropy(self.inner(x), y)

        @torch.no_grad()
        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            self.eval()
            out = self.inner(x)
            loss = nn.functional.cross_entropy(out, y, reduction="sum").item()
            right = int((out.argmax(1) == y).sum())
            return {"loss": Weighted(loss, len(y)), "accuracy": Weighted(right, len(y))}

    class Clock(TrainingProcessCallback):
        """The seconds of each round."""

        def __init__(self) -> None:
            self.marks: list[float] = []

        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            self.marks.append(time.perf_counter())
            return False, Metrics()

    trained = Trained()
    learner = PyTorchModel(
        trained,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(trained.parameters(), lr=1.0),
    )
    pairs = zip(*data(work), strict=True)
    users = [Dataset(pair, user_id=str(i)) for i, pair in enumerate(pairs)]
    kind = "random" if work["population"] > work["clients"] else "minimize_reuse"
    federation = FederatedDataset(
        users.__getitem__, get_user_sampler(kind, list(range(len(users))))
    )
    backend = SimulatedBackend(training_data=federation, val_data=federation)
    steps = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=work["lr"], local_batch_size=work["batch"]
    )
    callbacks: list[Any] = []
    if work.get("test"):
        callbacks.append(
            CentralEvaluationCallback(
                Dataset(held_out(work)),
                NNEvalHyperParams(local_batch_size=1000),
                work["eval_every"],
            )
        )

    def run(rounds: int) -> list[float]:
        # the first round of a pfl run evaluates every user, whatever is asked for: one more, not counted
        extra = 0 if work.get("exact") or work.get("test") else 1
        settings = NNAlgorithmParams(
            central_num_iterations=rounds + extra, evaluation_frequency=1 << 30,
            train_cohort_size=work["clients"], val_cohort_size=0,
        )  # fmt: skip
        clock = Clock()
        start = time.perf_counter()
        FederatedAveraging().run(
            algorithm_params=settings, backend=backend, model=learner, model_train_params=steps,
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            callbacks=[*callbacks, clock], send_metrics_to_platform=False,
        )  # fmt: skip
        return between([start, *clock.marks][extra:])

    return Runner(run, lambda: flat(trained.parameters()))


if __name__ == "__main__":
    import pfl
    from plain import serve

    serve(begin, getattr(pfl, "__version__", ""))
