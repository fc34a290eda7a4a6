"""The conformance table: every method gets every test of test_conformance.py by one row here."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import fairlead as fl

DECAY = fl.schedules.Exponential(0.2, 0.9)
SMALL = fl.schedules.Exponential(0.02, 0.9)
ADAM = {"eps": 1e-3, "beta2": 0.9}

METHODS: dict[str, fl.Algorithm] = {
    "fedsgd": fl.FedSGD(lr=DECAY),
    "minibatch-sgd": fl.MinibatchSGD(lr=DECAY),
    "fedavg": fl.FedAvg(lr=DECAY),
    "fedavg-server-lr": fl.FedAvg(lr=DECAY, server_lr=0.7),
    "fedavg-adam": fl.FedAvg(lr=DECAY, server=partial(torch.optim.Adam, lr=0.05)),
    "fedprox": fl.FedProx(lr=DECAY, mu=0.3),
    "scaffold": fl.Scaffold(lr=DECAY),
    "scaffold-1": fl.Scaffold(lr=DECAY, option="I"),
    "scaffold-1-local-adam": fl.Scaffold(
        lr=SMALL, option="I", local=fl.local.Adam(**ADAM, keep=True), warm_start=True
    ),
    "scaffold-warm": fl.Scaffold(lr=DECAY, warm_start=True, server_lr=1.3),
    "scaffold-per-step": fl.Scaffold(lr=fl.schedules.InverseSqrt(0.2, per="step")),
    "scaffold-momentum": fl.Scaffold(
        lr=DECAY, server=partial(torch.optim.SGD, lr=1.0, momentum=0.5)
    ),
    "scaffold-qsgd": fl.Scaffold(lr=DECAY, compressor=fl.QSGD(4)),
    "fedavg-m": fl.FedAvg(lr=DECAY, momentum=0.9),
    "fedavg-m-kept": fl.FedAvg(lr=DECAY, momentum=0.9, momentum_reset=False),
    "fedavg-local-adam": fl.FedAvg(lr=SMALL, local=fl.local.Adam(**ADAM, clip=0.5)),
    "fedprox-local-adamw-kept": fl.FedProx(
        lr=SMALL, mu=0.3, local=fl.local.AdamW(**ADAM, weight_decay=0.1, keep=True)
    ),
    "fedpvr-local-rmsprop-kept": fl.FedPVR(
        lr=SMALL, local=fl.local.RMSprop(alpha=0.9, eps=1e-3, momentum=0.5, keep=True)
    ),
    "feddyn-local-adam-kept": fl.FedDyn(
        lr=SMALL, alpha=0.5, local=fl.local.Adam(**ADAM, weight_decay=0.1, keep=True)
    ),
    "fedpaq": fl.FedPAQ(lr=DECAY, momentum=0.5),
    "fedavg-topk-ef": fl.FedAvg(lr=DECAY, compressor=fl.ErrorFeedback(fl.TopK(0.2))),
    "fedpvr": fl.FedPVR(lr=DECAY, layers=-1, momentum=0.9, server_lr=1.2),
    "fedpvr-first": fl.FedPVR(lr=DECAY, layers=["1.weight", "3"], compressor=fl.RandK(0.5)),
    "fedpvr-1-warm": fl.FedPVR(lr=DECAY, option="I", warm_start=True, momentum=0.5),
    "fedpvr-kept": fl.FedPVR(lr=DECAY, layers="from:3", momentum=0.9, momentum_reset=False),
    "fedlomo": fl.FedLOMO(lr=DECAY, damping=0.8, first_batch=6),
    "fedglomo": fl.FedGLOMO(lr=DECAY, beta=0.3),
    "fedglomo-qsgd": fl.FedGLOMO(lr=DECAY, first_batch=6, compressor=fl.QSGD(3, wire="elias")),
    "fedglomo-schedule": fl.FedGLOMO(lr=DECAY, beta=fl.schedules.Exponential(0.6, 0.7)),
    "mime": fl.Mime(lr=DECAY, beta=0.8),
    "mime-qsgd": fl.Mime(lr=DECAY, beta=0.8, compressor=fl.QSGD(6)),
    "mime-batch": fl.Mime(lr=DECAY, beta=0.8, batch=6),
    "mime-mvr": fl.Mime(lr=DECAY, optimizer="mvr", a=0.3),
    "mime-lite": fl.MimeLite(lr=DECAY, beta=0.8),
    "mime-lite-mvr": fl.MimeLite(lr=DECAY, optimizer="mvr", a=0.3),
    "mime-lite-mvr-batch": fl.MimeLite(lr=DECAY, optimizer="mvr", a=0.3, batch=6),
    "fedcomgate-exact": fl.FedCOMGATE(lr=DECAY, own="exact", compressor=fl.QSGD(4)),
    "fedcomgate": fl.FedCOMGATE(lr=DECAY, gamma=0.9, compressor=fl.QSGD(4)),
    "feddyn": fl.FedDyn(lr=DECAY, alpha=0.5),
    "scaffnew": fl.Scaffnew(lr=DECAY),
    "scaffnew-p": fl.Scaffnew(lr=DECAY, p=0.4),
    "scaffold-m": fl.ScaffoldM(lr=DECAY, beta=0.3),
    "scaffold-m-qsgd": fl.ScaffoldM(lr=DECAY, beta=0.3, compressor=fl.QSGD(4)),
    "fednova": fl.FedNova(lr=DECAY),
    "fedadagrad": fl.FedAdagrad(lr=DECAY),
    "fedadam": fl.FedAdam(lr=DECAY, compressor=fl.BFloat16()),
    "fedyogi": fl.FedYogi(lr=DECAY, local=fl.local.SGD(momentum=0.5, clip=0.3, keep=True)),
    "fedexp": fl.FedExP(lr=DECAY, eps=DECAY, average=True),
    "dp-fedavg": fl.DPFedAvg(lr=DECAY, norm=0.1, noise=0.3),
    "fedavg-median": fl.FedAvg(lr=DECAY, aggregate=fl.aggregate.Median()),
    "mirror-descent": fl.MirrorDescent(lr=DECAY),
    "mirror-prox": fl.MirrorProx(lr=DECAY, total=True),
    "extra-step": fl.ExtraStep(lr=DECAY),
    "scaffold-s": fl.ScaffoldS(lr=DECAY, server_lr=0.8),
    "catalyst-scaffold-s": fl.Catalyst(fl.ScaffoldS(lr=DECAY), theta=0.5, inner_rounds=2),
    "catalyst-decrease": fl.Catalyst(
        fl.Scaffold(lr=DECAY), theta=0.5, inner_rounds=5, decrease=0.9
    ),
    "catalyst-scaffold": fl.Catalyst(
        fl.Scaffold(lr=DECAY), theta=0.5, inner_rounds=2, extrapolation=0.3
    ),
}

FIRST = set({type(m): name for name, m in reversed(METHODS.items())}.values())
"""The first row of every method."""
ROWS = [
    pytest.param(name, marks=[] if name in FIRST else [pytest.mark.slow], id=name)
    for name in METHODS
]
"""All rows, for tests beside those of test_conformance.py: a method's further variants are slow ones."""
