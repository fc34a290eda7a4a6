"""Recurrent layers that run for many clients at once.

Torch computes `nn.RNN`, `nn.GRU` and `nn.LSTM` in one operator, which `torch.func.vmap` cannot run with weights that
differ from client to client. In local steps they are written out instead, with the same parameters under the same
names; evaluations use torch's own.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fairlead.errors import FairleadError


def written_out(model: nn.Module) -> nn.Module:
    """The model with its recurrent layers written out; its parameters and buffers stay the same tensors."""
    if not any(type(module) in LAYERS for module in model.modules()):
        return model
    tensors = [*model.parameters(), *model.buffers()]
    other = copy.deepcopy(model, {id(t): t for t in tensors})
    for module in other.modules():
        if type(module) in LAYERS:
            module.__class__ = LAYERS[type(module)]
    return other


class _WrittenOut(nn.RNNBase, ABC):
    """The layers and directions of a recurrent network, over a cell (inputs, hidden, weights) → hidden."""

    @abstractmethod
    def cell(self, gates: Tensor, state: tuple[Tensor, ...], weights: list[Tensor]) -> Any:
        """The next state: a tuple whose first part is the output."""

    @property
    def states(self) -> int:
        """How many tensors are carried from step to step."""
        return 1

    def forward(self, input: Any, hx: Any = None) -> Any:  # torch's name
        if isinstance(input, PackedSequence):
            raise FairleadError(
                "packed sequences cannot be trained: give padded ones and a mask to the model"
            )
        x = input if input.dim() == 3 else input.unsqueeze(0 if self.batch_first else 1)
        x = x.transpose(0, 1) if self.batch_first else x
        given = None
        if hx is not None:
            parts = hx if isinstance(hx, tuple) else (hx,)
            given = [h if input.dim() == 3 else h.unsqueeze(1) for h in parts]
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            ways = []
            for back in range(1 + self.bidirectional):
                place = layer * (1 + self.bidirectional) + back
                start = None if given is None else tuple(h[place] for h in given)
                outputs, end = self._pass(x, start, layer, bool(back))
                ways.append(outputs)
                last.append(end)
            x = torch.cat(ways, -1)
        x = x.transpose(0, 1) if self.batch_first else x
        end = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
        if input.dim() == 2:
            x, end = x.squeeze(0 if self.batch_first else 1), tuple(h.squeeze(1) for h in end)
        return x, end if self.states > 1 else end[0]

    def _pass(
        self, x: Tensor, state: tuple[Tensor, ...] | None, layer: int, back: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One layer over a sequence (T, B, …) in one direction."""
        suffix = f"l{layer}" + "_reverse" * back
        names = [f"weight_hh_{suffix}"] + [f"bias_hh_{suffix}"] * self.bias
        names += [f"weight_hr_{suffix}"] * bool(self.proj_size)
        weights = [getattr(self, name) for name in names]
        bias = getattr(self, f"bias_ih_{suffix}") if self.bias else None
        gates = F.linear(x, getattr(self, f"weight_ih_{suffix}"), bias)
        if state is None:
            widths = (self.proj_size or self.hidden_size, self.hidden_size)[: self.states]
            state = tuple(x.new_zeros(x.shape[1], width) for width in widths)
        now: tuple[Tensor, ...] = state
        outputs: list[Tensor] = []
        steps = gates.unbind(0)
        for step in reversed(steps) if back else steps:
            now = self.cell(step, now, weights)
            outputs.append(now[0])
        return torch.stack(outputs[::-1] if back else outputs), now

    def _from_hidden(self, h: Tensor, weights: list[Tensor]) -> Tensor:
        return F.linear(h, weights[0], weights[1] if self.bias else None)


class RNN(_WrittenOut, nn.RNN):
    """`nn.RNN` written out."""

    forward = _WrittenOut.forward

    def cell(self, gates: Tensor, state: tuple[Tensor, ...], weights: list[Tensor]) -> Any:
        squash: Callable[[Tensor], Tensor] = torch.tanh if self.mode == "RNN_TANH" else torch.relu
        return (squash(gates + self._from_hidden(state[0], weights)),)


class GRU(_WrittenOut, nn.GRU):
    """`nn.GRU` written out."""

    forward = _WrittenOut.forward

    def cell(self, gates: Tensor, state: tuple[Tensor, ...], weights: list[Tensor]) -> Any:
        a, b = gates.chunk(3, -1), self._from_hidden(state[0], weights).chunk(3, -1)
        reset, keep = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
        return (keep * state[0] + (1 - keep) * torch.tanh(a[2] + reset * b[2]),)


class LSTM(_WrittenOut, nn.LSTM):
    """`nn.LSTM` written out."""

    forward = _WrittenOut.forward

    @property
    def states(self) -> int:
        return 2

    def cell(self, gates: Tensor, state: tuple[Tensor, ...], weights: list[Tensor]) -> Any:
        take, forget, new, give = (gates + self._from_hidden(state[0], weights)).chunk(4, -1)
        c = torch.sigmoid(forget) * state[1] + torch.sigmoid(take) * torch.tanh(new)
        h = torch.sigmoid(give) * torch.tanh(c)
        return (F.linear(h, weights[-1]) if self.proj_size else h), c


LAYERS: dict[type, type] = {nn.RNN: RNN, nn.GRU: GRU, nn.LSTM: LSTM}
