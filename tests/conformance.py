"""The conformance table: every method gets every test of test_conformance.py by one row here."""

from __future__ import annotations

from functools import partial

import torch

import fairlead as fl

DECAY = fl.schedules.Exponential(0.2, 0.9)

METHODS: dict[str, fl.Algorithm] = {
    "fedsgd": fl.FedSGD(lr=DECAY),
    "minibatch-sgd": fl.MinibatchSGD(lr=DECAY),
    "fedavg": fl.FedAvg(lr=DECAY),
    "fedavg-server-lr": fl.FedAvg(lr=DECAY, server_lr=0.7),
    "fedavg-adam": fl.FedAvg(lr=DECAY, server=partial(torch.optim.Adam, lr=0.05)),
    "fedprox": fl.FedProx(lr=DECAY, mu=0.3),
    "scaffold": fl.Scaffold(lr=DECAY),
    "scaffold-1": fl.Scaffold(lr=DECAY, option="I"),
    "scaffold-warm": fl.Scaffold(lr=DECAY, warm_start=True, server_lr=1.3),
    "scaffold-per-step": fl.Scaffold(lr=fl.schedules.InverseSqrt(0.2, per="step")),
    "scaffold-momentum": fl.Scaffold(
        lr=DECAY, server=partial(torch.optim.SGD, lr=1.0, momentum=0.5)
    ),
}
