"""Probes through the exchange: their client programs run in every executor, and write nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead.core.method import Algorithm, Broadcast, Replies, Step, program_name
from fairlead.core.records import State
from fairlead.engine.accounting import Exchange
from fairlead.engine.api import Answer, Ids, Request
from fairlead.engine.clients import Single, Stacked, large_batch
from fairlead.engine.exchange import RoundCohort, plain, server_noise
from fairlead.engine.resources import samples_that_fit
from fairlead.engine.session import Session
from fairlead.errors import Absent, FairleadError
from fairlead.gradients.deferred import settled
from fairlead.gradients.second import Local
from fairlead.probe.place import Exchanges, ProbedClient, part_of
from fairlead.probe.trial import TrialCohort
from fairlead.schedules import Rate
from fairlead.task.per_client import personal_sums, split_of_test, tests_of


class ProbeCohort(RoundCohort):
    """Clients that answer a probe: nothing is committed but the cost, under the probe's name."""

    def __init__(self, session: Session, round: int, ids: Ids, probe: str, idle: bool) -> None:
        assert session.executor is not None, "the session is not prepared"
        super().__init__(session, round, ids, ids, session.executor, idle=idle)
        self.probe = probe

    def ask(
        self, label: str, program: Callable[..., Any], broadcast: Mapping[str, Broadcast]
    ) -> Answer:
        """One exchange with any program. label: its name, the same in every process."""
        name = f"{self.probe}.{label}"
        self.session.programs[name] = probing(program, self.session.method)
        weights = self.session.cohort_weights(self.ids)[1]
        request = Request(
            name, plain(broadcast), self.round, self.exchange, self.ids, weights, self.draw_of,
            measuring=True, rows=not self.idle and self.session.method.sees_each(),
        )  # fmt: skip
        try:
            answer = self.executor.execute(request)
        finally:
            del self.session.programs[name]
        self.exchange += 1
        if answer.answered is not None:
            self.ids = self.ids[answer.answered]
        self._enter(answer, self.sent.bits(broadcast))
        if answer.answered is not None:
            raise Absent(self.ids)
        return answer

    def heard(self, mean: Any, answer: Answer) -> Replies[Any]:
        """What the server sees of an answer."""
        share, weights = self.session.cohort_weights(self.ids)
        return Replies(mean, answer.count, share, weights, None, self.noise)

    def _enter(self, answer: Answer, down: int) -> None:
        accounts, total = self.session.accounts, self.session.group.total
        up = np.array(answer.up)
        for some, bits in answer.up_later:
            up[some] += bits.cpu().numpy().astype(np.int64)
        spent = np.array([answer.gradients, *up], dtype=np.float64)
        if total is not None:
            spent = total(spent)
        up = spent[1:].astype(np.int64)
        accounts.counters.measured += int(spent[0])
        accounts.ledger.add(
            Exchange(self.round, self.ids, down, up, float(up.sum()), measure=self.probe)
        )


class SessionExchanges(Exchanges):
    """The exchanges of one probe with the clients of a session."""

    def __init__(self, session: Session, round: int, probe: str) -> None:
        self.session, self.round, self.probe = session, round, probe
        self.idle: dict[bytes, ProbeCohort] = {}

    def run(
        self, label: str, program: Callable[..., Any], ids: Ids, broadcast: Mapping[str, Broadcast]
    ) -> Replies[Any]:
        key = ids.tobytes()
        if key not in self.idle:  # a client receives a vector once
            self.idle[key] = ProbeCohort(self.session, self.round, ids, self.probe, idle=True)
        cohort = self.idle[key]
        answer = cohort.ask(label, program, broadcast)
        return cohort.heard(answer.kind(**answer.sums, **answer.rows), answer)

    def trial(
        self, state: State, ids: Ids, hear: Callable[..., Any], sent: Mapping[str, Broadcast]
    ) -> tuple[State, dict[str, Tensor]]:
        session = self.session
        cohort = ProbeCohort(session, self.round, ids, self.probe, idle=False)

        def ask(
            label: str, program: Callable[..., Any], broadcast: Mapping[str, Broadcast]
        ) -> tuple[dict[str, Tensor], dict[str, Tensor], Replies[Any], type[Any]]:
            answer = cohort.ask(label, program, broadcast)
            return answer.sums, answer.rows, cohort.heard(None, answer), answer.kind

        def program(given: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
            name = program_name(given)
            return name, session.method.program(name)

        listening = TrialCohort(cohort, ask, program, hear, {**sent, "steps": cohort.longest})
        after = session.method.round(state, listening)
        return after, listening.heard

    def noise(self, call: int, like: Tensor) -> Tensor:
        return server_noise(self.session.seed, self.round, 1 << 16 | call, like)


def probing(program: Callable[..., Any], method: Algorithm[Any, Any]) -> Callable[..., Any]:
    """The program of a probe, as one of the engine."""
    return lambda client, **down: program(_Probed(client, part_of(method)), **down)


class _Probed(ProbedClient):
    """A client, or S of them, with what probes need on top."""

    def __init__(self, client: Stacked | Single, part: Any) -> None:
        client.work = replace(client.work, gradients=client.work.gradients.replayed())
        self.client, self.memory, self.part = client, client.memory, part
        self.work, self.single = client.work, isinstance(client, Single)
        rows = np.array([client.row]) if isinstance(client, Single) else client.rows
        task = self.work.task
        ids = torch.from_numpy(self.work.identities[rows])
        ids = ids.to(task.device, task.dtype, non_blocking=True)
        self.rows, self.ids = rows, ids if self.single else ids[:, None]
        self.local = Local(self.work.gradients, rows, self._buffers(), samples_that_fit(task))

    def _buffers(self) -> Tensor:
        buffers = self.work.buffers
        return buffers.expand(len(self.rows), -1)

    def _index(self, batch: int | None) -> tuple[Tensor, Any] | None:
        """The large batch of a round; None for all data."""
        if batch is None or batch >= int(self.work.task.sizes[self.rows].max()):
            return None
        work, recent = self.work, self.work.gradients.recent
        now = (work.seed, work.round, self.rows.tobytes(), batch)
        before, found = recent.get("large batch", (None, None))
        if before != now:
            draw = large_batch(work, self.rows, batch)
            found = draw.index[:, 0], draw.count[:, 0]
            recent["large batch"] = now, found
        return found

    def _spent(self, batch: int | None, times: int) -> None:
        sizes = self.work.task.sizes[self.rows]
        self.client.gradients += times * int(
            sizes.sum() if batch is None else np.minimum(sizes, batch).sum()
        )

    def _shaped(self, found: Tensor) -> Tensor:
        return found[0] if self.single else found

    @property
    def moved(self) -> Any:
        return self.client.moved

    def steps(self, lr: Rate) -> Iterator[Step]:
        return self.client.steps(lr)

    def grad(self, x: Tensor, batch: int | None = None) -> Tensor:
        return settled(self.client.grad(x, batch))

    def encode(self, upload: Any, by: Any) -> Any:
        return self.client.encode(upload, by)

    def noise(self, like: Tensor) -> Tensor:
        return self.client.noise(like)

    def halves(self, x: Tensor, batch: int | None) -> tuple[Tensor, Tensor]:
        chosen = self._index(batch)
        if chosen is None:
            g = self.grad(x)
            return g, torch.zeros_like(g)
        if batch is not None and batch % 2:
            raise FairleadError(f"samples is {batch}: give an even number, for two halves")
        self._spent(batch, 1)
        g, h = self.local.halves(_rows(x), chosen)
        return self._shaped(g), self._shaped(h)

    def products(self, x: Tensor, v: Tensor, batch: int | None = None) -> Tensor:
        self._spent(batch, 2 * v.shape[-2])
        rows = v.expand(len(self.rows), *v.shape[-2:])
        return self._shaped(self.local.products(_rows(x), rows, self._index(batch)))

    def variance(self, x: Tensor, batch: int | None = None, part: Any = None) -> Tensor:
        task = self.work.task
        if task.mixes_samples:
            raise FairleadError(
                "BatchNorm mixes the samples of a batch, so a gradient on one sample is undefined: use GroupNorm"
            )
        self._spent(batch, 1)
        squares = self.local.variance(_rows(x), self._index(batch), part)
        d = task.dim if part is None else len(torch.arange(task.dim, device=x.device)[part])
        return self._shaped(squares + d * task.noise**2)

    def loss(self, x: Tensor) -> Tensor:
        return self._shaped(self.local.loss(_rows(x)))

    def tested(self, x: Tensor) -> tuple[Tensor, Tensor]:
        task, count = self.work.task, len(self.rows)
        sizes, sums = np.zeros(count), x.new_zeros(count, len(tests_of(task)))
        if task.test is not None and sums.numel():
            sizes = split_of_test(task).sizes[self.rows]
        if sizes.any():
            points = _rows(x).expand(count, -1)
            sums = personal_sums(task, self.rows, points, self._buffers()).T
        return self._shaped(torch.from_numpy(sizes).to(sums)[:, None]), self._shaped(sums)

    def settled(self, value: Any) -> Any:
        return settled(value)

    def features(self, x: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        found = self.local.features(_rows(x).expand(len(self.rows), -1), inputs)
        return {name: self._shaped(value) for name, value in found.items()}


def _rows(x: Tensor) -> Tensor:
    return settled(x) if x.dim() == 2 else settled(x)[None]
