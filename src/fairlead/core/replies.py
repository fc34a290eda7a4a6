"""What came back from one exchange: means, and for methods that ask for it every client's upload."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fairlead.core.records import Upload
from fairlead.errors import FairleadError, positive

U = TypeVar("U", bound=Upload)


@dataclass(frozen=True)
class Replies(Generic[U]):
    """What came back from one exchange.

    `each` and what is made of it are for methods whose `sees_each` says so. `mean` has the run's weights;
    in `median`, `trimmed_mean` and `clipped_mean` every client counts once, as a weight is something that a
    hostile client could choose, and that would have to be private.

    >>> class Moved(Upload):
    ...     dy: Tensor
    >>> rows = Moved(dy=torch.tensor([[1.0], [2.0], [90.0]]))
    >>> replies = Replies(Moved(dy=torch.tensor([31.0])), 3, 0.3, torch.full((3,), 1 / 3), rows, torch.zeros_like)
    >>> replies.mean.dy, replies.median.dy, replies.trimmed_mean(0.3).dy
    (tensor([31.]), tensor([2.]), tensor([2.]))
    """

    mean: U
    """The mean of every uploaded vector over the clients that answered, by the run's weights."""
    count: int
    """How many clients answered."""
    share: Any
    """The weight of the clients that answered among all clients: |S|/N for uniform weights. A number,
    or a one-element tensor where rounds are captured."""
    weights: Tensor
    """Their weights in the mean, (S,)."""
    rows: U | None
    """Their uploads as the rows of matrices, where the method asks for them."""
    noise: Callable[[Tensor], Tensor]
    """The cohort's noise."""

    @property
    def each(self) -> U:
        """The upload of every client: each vector is a matrix (S, d), in the order of the cohort."""
        if self.rows is None:
            raise FairleadError(
                "only means are kept of what clients send: define `sees_each` in the method to return True"
            )
        return self.rows

    @property
    def median(self) -> U:
        """The median of every coordinate (Yin et al. 2018); of an even number, the mean of the middle two."""
        return self.trimmed_mean(0.5)

    def trimmed_mean(self, share: float) -> U:
        """The mean of every coordinate without its largest and its smallest values (Yin et al. 2018).

        share: how many are left out at either end, as a share of the clients, rounded up; one or two are
        always left, so that 0.5 is the median.
        """
        if not 0 <= share <= 0.5:
            raise FairleadError(f"the share to trim is {share}: must be in [0, 0.5]")
        out = min(math.ceil(share * self.count - 1e-9), (self.count - 1) // 2)
        return self.each.map(lambda v: v.sort(0).values[out : self.count - out].mean(0))

    def clipped_mean(self, norm: float, noise: float = 0.0) -> U:
        """The mean of the uploads, each shortened to a norm if it is longer, plus normal noise.

        norm: C, the largest norm of all vectors of an upload together. noise: z, the standard deviation of
        the noise is z·C/S; z is the noise multiplier of differential privacy.
        """
        positive("norm", norm)
        squares = [v.square().sum(-1, keepdim=True) for v in self.each.tensors().values()]
        factor = (norm / torch.stack(squares).sum(0).sqrt()).clamp(max=1.0)  # 1 for a zero vector
        clipped = self.each.map(lambda v: (factor * v).mean(0))
        std = noise * norm / self.count
        return clipped.map(lambda v: v + std * self.noise(v)) if noise else clipped
