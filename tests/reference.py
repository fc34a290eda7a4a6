"""The methods once more, as the papers' boxes read: numpy, float64, one loop a `for` in the box.

Nothing here is shared with the library, so that agreement means something. Notation: client i has
the objective f_i, S holds the clients of a round that answered, p_i is the weight of client i
(they sum to one over all N clients), and mean(v) is the weighted mean over S.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


class Ridge:
    """f_i(x) = 1/(2n) Σ_j (a_j'x − y_j)² + l2/2 ‖x‖²."""

    def __init__(self, a, y, l2=0.0):
        self.a, self.y, self.l2 = a, y, l2

    def grad(self, x, idx):
        """The gradient on the samples `idx`."""
        a, y = self.a[idx], self.y[idx]
        return a.T @ (a @ x - y) / len(idx) + self.l2 * x

    def full_grad(self, x):
        """∇f_i(x)."""
        return self.grad(x, np.arange(len(self.a)))


class Softmax:
    """f_i(x) = 1/n Σ_j (log Σ_c exp(z_jc) − z_j,y_j) + l2/2 ‖x‖², z_j = W a_j + b, with x the rows
    of W, then b."""

    def __init__(self, a, y, classes, l2=0.0):
        self.a, self.y, self.classes, self.l2 = a, y, classes, l2

    def grad(self, x, idx):
        """The gradient on the samples `idx`: residuals are the probabilities minus the labels."""
        a, y = self.a[idx], self.y[idx]
        w, b = x[: -self.classes].reshape(self.classes, -1), x[-self.classes :]
        z = a @ w.T + b
        e = np.exp(z - z.max(1, keepdims=True))
        r = e / e.sum(1, keepdims=True)
        r[np.arange(len(idx)), y] -= 1
        return np.concatenate([(r.T @ a).ravel(), r.sum(0)]) / len(idx) + self.l2 * x

    def full_grad(self, x):
        """∇f_i(x)."""
        return self.grad(x, np.arange(len(self.a)))


@dataclass
class Plan:
    """Everything random about a run, given."""

    clients: Sequence[Ridge | Softmax]
    cohorts: Sequence[Sequence[int]]
    """The clients sampled in each round."""
    lost: Sequence[Sequence[int]]
    """The clients of each round that do not answer: they do nothing, and keep their state."""
    batches: dict[tuple[int, int], list[list[int]]]
    """The batches of (round, client), one a local step."""
    eta: Callable[[int], float]
    """The local step size of a round."""
    by_size: bool = False
    """Whether clients weigh by their number of samples, not equally."""

    @property
    def p(self) -> np.ndarray:
        """The weights of f = Σ p_i f_i."""
        raw = np.array([len(f.a) if self.by_size else 1.0 for f in self.clients])
        return raw / raw.sum()

    def rounds(self) -> Iterator[tuple[int, float, list[int]]]:
        """Round, step size and S; a round in which nobody answers changes nothing."""
        for r, (cohort, lost) in enumerate(zip(self.cohorts, self.lost, strict=True)):
            answered = [i for i in cohort if i not in lost]
            if answered:
                yield r, self.eta(r), answered

    def mean(self, vectors: dict[int, np.ndarray]) -> np.ndarray:
        """The weighted mean over the clients that sent a vector."""
        p = self.p
        return sum(p[i] * v for i, v in vectors.items()) / sum(p[i] for i in vectors)


def fedsgd(x, plan):
    """Gradient descent: full local gradients at x."""
    for _, eta, s in plan.rounds():
        x = x - eta * plan.mean({i: plan.clients[i].full_grad(x) for i in s})
    return x


def minibatch_sgd(x, plan):
    """Large-batch SGD: a client sends the mean of its minibatch gradients, all at x."""
    for r, eta, s in plan.rounds():
        g = {}
        for i in s:
            g[i] = np.mean([plan.clients[i].grad(x, idx) for idx in plan.batches[r, i]], 0)
        x = x - eta * plan.mean(g)
    return x


def fedavg(x, plan, server_lr=1.0):
    """y ← x; K times y ← y − η g_i(y); x ← x + η_g mean(y − x)."""
    return fedprox(x, plan, 0.0, server_lr)


def fedprox(x, plan, mu, server_lr=1.0):
    """FedAvg with steps along g_i(y) + μ(y − x)."""
    for r, eta, s in plan.rounds():
        delta = {}
        for i in s:
            y = x
            for idx in plan.batches[r, i]:
                y = y - eta * (plan.clients[i].grad(y, idx) + mu * (y - x))
            delta[i] = y - x
        x = x + server_lr * plan.mean(delta)
    return x


def scaffold(x, plan, option, warm=False, server_lr=1.0):
    """SCAFFOLD, option "I" or "II"; returns x, c and all c_i.

    Control variates start at zero or, warm, at c_i = ∇f_i(x) and c = Σ p_i c_i.
    The server's c ← c + |S|/N mean(Δc_i) keeps c the mean of all c_i. With weights the share |S|/N
    of the clients is the share Σ_S p_i of the weight: only then does c stay Σ p_i c_i.
    """
    n, p = len(plan.clients), plan.p
    c_i = [f.full_grad(x) if warm else np.zeros_like(x) for f in plan.clients]
    c = sum(p[i] * c_i[i] for i in range(n))
    for r, eta, s in plan.rounds():
        delta_y, delta_c = {}, {}
        for i in s:
            y, applied = x, 0.0
            for idx in plan.batches[r, i]:
                y = y - eta * (plan.clients[i].grad(y, idx) - c_i[i] + c)
                applied += eta
            new = c_i[i] - c + (x - y) / applied
            if option == "I":
                new = plan.clients[i].full_grad(x)
            delta_y[i], delta_c[i] = y - x, new - c_i[i]
        x = x + server_lr * plan.mean(delta_y)
        c = c + sum(p[i] for i in s) * plan.mean(delta_c)
        for i in s:
            c_i[i] = c_i[i] + delta_c[i]
    return x, c, np.array(c_i)
