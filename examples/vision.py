"""Images: a small network on handwritten digits that clients hold by label, with and without corrected last layers.

    python examples/vision.py            # or: python examples/vision.py 3  for three rounds

FedPVR corrects only the classifier, where clients with different labels disagree, and so sends less than SCAFFOLD. `drift` is the
drift diversity of the last round: 1 where clients move at right angles. With data sets that are downloaded, the task is one line: fl.tasks.TASKS["cifar10"](clients=100, model="resnet8").
"""

from __future__ import annotations

import sys

from torch import nn

import fairlead as fl


def net() -> nn.Module:
    """Two convolutions and a classifier for 8 × 8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )  # fmt: skip


def task() -> fl.Task:
    """Ten clients, most of whose images show two or three of the ten digits."""
    data = fl.sources.digits()
    x, x_test = (images.reshape(-1, 1, 8, 8) for images in (data.x, data.x_test))
    split = fl.splits.dirichlet(data.y, clients=10, alpha=0.1)
    return fl.Task(net, "cross_entropy", (x, data.y), split, test=(x_test, data.y_test))


def main(rounds: int = 30) -> None:
    print(f"{'method':8} {'accuracy':>9} {'drift':>7} {'megabits':>9}")
    for method in (fl.FedAvg(lr=0.1), fl.FedPVR(lr=0.1, layers=-1), fl.Scaffold(lr=0.1)):
        run = fl.train(task(), method, rounds=rounds, cohort=5, epochs=2, batch_size=16, drift=True)
        accuracy, bits = run.history.best("accuracy"), run.history.last("bits") / 1e6
        print(
            f"{type(method).__name__:8} {accuracy:9.3f} {run.history.last('drift'):7.2f} {bits:9.1f}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
