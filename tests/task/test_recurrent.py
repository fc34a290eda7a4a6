"""Recurrent layers in local steps: torch's own, written out for many clients at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import fairlead as fl
from fairlead.task.recurrent import written_out

KINDS = {
    "rnn": lambda: nn.RNN(4, 5),
    "relu": lambda: nn.RNN(4, 5, nonlinearity="relu", bias=False),
    "gru": lambda: nn.GRU(4, 5, batch_first=True),
    "gru-deep": lambda: nn.GRU(4, 5, num_layers=2, bidirectional=True, bias=False),
    "lstm": lambda: nn.LSTM(4, 5, num_layers=2, batch_first=True),
    "lstm-both-ways": lambda: nn.LSTM(4, 5, bidirectional=True, proj_size=3),
}


@pytest.mark.parametrize("name", KINDS)
def test_it_computes_what_torch_computes(name: str) -> None:
    torch.manual_seed(0)
    layer: Any = KINDS[name]().double()
    ours = written_out(layer)
    assert type(ours) is not type(layer)
    assert [id(p) for p in ours.parameters()] == [id(p) for p in layer.parameters()]
    for x in (torch.randn(3, 6, 4).double(), torch.randn(6, 4).double()):
        expected, end = layer(x)
        torch.testing.assert_close(ours(x), (expected, end), rtol=0, atol=1e-14)
        torch.testing.assert_close(ours(x, end), layer(x, end), rtol=0, atol=1e-14)
    wanted = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    found = torch.autograd.grad(ours(x)[0].square().sum(), list(layer.parameters()))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)


def test_dropout_between_layers_is_for_training_only() -> None:
    ours = written_out(nn.GRU(4, 5, num_layers=2, dropout=0.5))
    x = torch.randn(3, 2, 4)
    assert not torch.equal(ours(x)[0], ours(x)[0])
    ours.eval()
    assert torch.equal(ours(x)[0], ours(x)[0])


def test_packed_sequences_are_refused() -> None:
    with pytest.raises(fl.FairleadError, match="give padded ones and a mask"):
        written_out(nn.GRU(4, 5))(pack_sequence([torch.zeros(3, 4), torch.zeros(2, 4)]))


class Reader(nn.Module):
    """Classifies sequences of tokens by the last output of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(7, 4), layer, nn.Linear(5, 3)

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(codes))[0][:, -1])


def _task(model: nn.Module, **settings: Any) -> fl.Task:
    torch.manual_seed(1)
    x, y = torch.randint(7, (24, 5)), torch.randint(3, (24,))
    owners = [range(10), range(10, 17), range(17, 24)]
    return fl.Task(
        model, "cross_entropy", (x, y), owners, test=(x, y), dtype=torch.float64, **settings
    )


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_models_run_in_every_engine(kind: Any, device: str) -> None:
    torch.manual_seed(2)
    task = _task(Reader(kind(4, 5, batch_first=True)), device=device)
    settings = {"rounds": 3, "cohort": 2, "batch_size": 4}
    runs = [fl.train(task, fl.Scaffold(lr=0.3), engine=e, **settings) for e in ("vmap", "loop")]
    runs.append(
        fl.train(task, fl.Scaffold(lr=0.3), engine=fl.Simulate("vmap", memory=1), **settings)
    )
    expected = fl.train(task.to("cpu"), fl.Scaffold(lr=0.3), engine="debug", **settings)
    for run in runs:
        torch.testing.assert_close(run.x.cpu(), expected.x, rtol=0, atol=1e-11)
        assert run.history.last("loss") == pytest.approx(expected.history.last("loss"), abs=1e-11)
    assert type(runs[0].model().layer) is kind  # users get their own layers back


class Branching(nn.Module):
    """Looks at values in Python, which vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x.to(self.layer.weight.dtype))
        return out if out.sum() > 0 else -out


def test_what_vmap_cannot_run_is_refused_or_runs_one_by_one() -> None:
    task = _task(Branching())
    with pytest.raises(fl.FairleadError, match=r'vmap cannot run the model .*; use engine="loop"$'):
        fl.train(task, fl.FedAvg(lr=0.1), rounds=1, engine="vmap")
    found = fl.train(task, fl.FedAvg(lr=0.1), rounds=2)
    assert found.engine.startswith("loop: vmap cannot run the model")
    asked = fl.train(task, fl.FedAvg(lr=0.1), rounds=2, engine="loop")
    torch.testing.assert_close(found.x, asked.x, rtol=0, atol=1e-12)
