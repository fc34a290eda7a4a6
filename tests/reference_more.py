"""The further methods as their papers' boxes read: numpy, float64, one loop a `for` in the box.

As in `reference`, nothing is shared with the library: client i has the objective f_i, S holds the
clients of a round that answered, p_i is the weight of client i, and mean(v) is the weighted mean
over S. A factor |S|/N of a box is the share Σ_S p_i of the weight here, the same if all weigh the
same. A function returns the model, the server's state by name and the clients' states by name.
"""

import numpy as np


def fedavg(x, plan, server_lr=1.0, momentum=0.0, server_momentum=0.0, reset=True):
    """FedAvg-m: buf ← m buf + g_i(y); y ← y − η buf, with buf = 0 at the start of every round.

    Server momentum: v ← m_s v + mean(x − y), x ← x − η_g v. Without reset a client's buf goes on.
    """
    v, kept = np.zeros_like(x), np.zeros((len(plan.clients), len(x)))
    for r, eta, s in plan.rounds():
        down = {}
        for i in s:
            y, buf = x, np.zeros_like(x) if reset else kept[i]
            for idx in plan.batches[r, i]:
                buf = momentum * buf + plan.clients[i].grad(y, idx)
                y = y - eta * buf
            down[i], kept[i] = x - y, buf
        v = server_momentum * v + plan.mean(down)
        x = x - server_lr * v
    return x, {}, {} if reset else {"buffer": kept}


def fedpvr(x, plan, part, server_lr=1.0, momentum=0.0, reset=True):
    """Algorithm I of Li et al. 2023: SCAFFOLD II on the 0/1 mask `part`, SGD with momentum off it."""
    n, p = len(plan.clients), plan.p
    svr, sgd = np.flatnonzero(part), np.flatnonzero(~part)
    c, c_i = np.zeros(len(svr)), np.zeros((n, len(svr)))
    kept = np.zeros((n, len(sgd)))
    for r, eta, s in plan.rounds():
        delta_y, new_c = {}, {}
        for i in s:
            y, buf, applied = x.copy(), np.zeros(len(sgd)) if reset else kept[i], 0.0
            for idx in plan.batches[r, i]:
                g = plan.clients[i].grad(y, idx)
                buf = momentum * buf + g[sgd]
                y[sgd] -= eta * buf
                y[svr] -= eta * (g[svr] - c_i[i] + c)
                applied += eta
            new_c[i] = c_i[i] - c + (x[svr] - y[svr]) / applied
            delta_y[i], kept[i] = y - x, buf
        x = x + server_lr * plan.mean(delta_y)
        for i in s:
            c_i[i] = new_c[i]
        c = sum(p[i] * c_i[i] for i in range(n))
    return x, {"c": c}, {"c": c_i}


def lomo_loop(f, w, eta, batches, damping):
    """Algorithm 5 of Das et al. 2022: v_0 = ∇f_i(w_0), then both gradients on the step's batch."""
    v = f.full_grad(w)
    last, w = w, w - eta * v
    for idx in batches[1:]:
        v = f.grad(w, idx) + damping * (v - f.grad(last, idx))
        last, w = w, w - eta * v
    return w


def fedlomo(x, plan, damping=1.0):
    """Algorithms 4 and 5 of Das et al. 2022, without compression."""
    for r, eta, s in plan.rounds():
        end = {i: lomo_loop(plan.clients[i], x, eta, plan.batches[r, i], damping) for i in s}
        x = x + plan.mean({i: end[i] - x for i in s})
    return x, {}, {}


def fedglomo(x, plan, beta, damping=1.0):
    """Algorithms 1 and 2 of Das et al. 2022, without compression; w_{−1} = w_0, and β_k of round k."""
    last, u, first = x, np.zeros_like(x), True
    for r, eta, s in plan.rounds():
        a, b = {}, {}
        for i in s:
            a[i] = x - lomo_loop(plan.clients[i], x, eta, plan.batches[r, i], damping)
            b[i] = last - lomo_loop(plan.clients[i], last, eta, plan.batches[r, i], damping)
        if first:
            u = plan.mean(a)
        else:
            change = plan.mean({i: a[i] - b[i] for i in s})
            b_k = beta(r) if callable(beta) else beta
            u = b_k * plan.mean(a) + (1 - b_k) * u + (1 - b_k) * change
        last, x, first = x, x - u, False
    return x, {"u": u, "last": last}, {}


def mime_sgdm(x, plan, beta, lite=False):
    """Mime with SGDm: U(g, s) = (1 − β)g + βs with the round's old s, then s ← (1 − β)c + βs."""
    s = np.zeros_like(x)
    for r, eta, answered in plan.rounds():
        c = plan.mean({i: plan.clients[i].full_grad(x) for i in answered})
        ends = {}
        for i in answered:
            f, y = plan.clients[i], x
            for idx in plan.batches[r, i]:
                g = f.grad(y, idx) if lite else f.grad(y, idx) - f.grad(x, idx) + c
                y = y - eta * ((1 - beta) * g + beta * s)
            ends[i] = y
        s = (1 - beta) * c + beta * s
        x = plan.mean(ends)
    return x, {"s": s}, {}


def mime_mvr(x, plan, a, lite=False):
    """Mime with MVR: m ← a c + (1 − a)(m + c − c₋) before the local steps, a = 1 the first time.

    Mime steps along g_i(y) − g_i(x) + m, with the new m. MimeLite has no c in the local steps, so it
    steps along a g_i(y) + (1 − a)(m + g_i(y) − g_i(x)), with the old m.
    """
    m, last, first = np.zeros_like(x), x, True
    for r, eta, s in plan.rounds():
        rate = 1.0 if first else a
        c = plan.mean({i: plan.clients[i].full_grad(x) for i in s})
        c_last = plan.mean({i: plan.clients[i].full_grad(last) for i in s})
        old, m = m, rate * c + (1 - rate) * (m + c - c_last)
        ends = {}
        for i in s:
            f, y = plan.clients[i], x
            for idx in plan.batches[r, i]:
                g, g_x = f.grad(y, idx), f.grad(x, idx)
                d = rate * g + (1 - rate) * (old + g - g_x) if lite else g - g_x + m
                y = y - eta * d
            ends[i] = y
        last, x, first = x, plan.mean(ends), False
    return x, {"s": m}, {}


def fedcomgate(x, plan, gamma=1.0):
    """FedCOMGATE without compression: D_i = (w − y)/η, w ← w − ηγD, δ_i ← δ_i + (D_i − D)/τ."""
    delta = [np.zeros_like(x) for _ in plan.clients]
    for r, eta, s in plan.rounds():
        (tau,) = {len(plan.batches[r, i]) for i in s}
        d = {}
        for i in s:
            y = x
            for idx in plan.batches[r, i]:
                y = y - eta * (plan.clients[i].grad(y, idx) - delta[i])
            d[i] = (x - y) / eta
        mean = plan.mean(d)
        for i in s:
            delta[i] = delta[i] + (d[i] - mean) / tau
        x = x - eta * gamma * mean
    return x, {}, {}


def feddyn(x, plan, alpha):
    """Algorithm 1 of Acar et al. 2021; SGD on f_i(y) − ⟨g_i, y⟩ + α/2 ‖y − x‖² for the argmin.

    g_i ← g_i − α(y − x); h ← h − α/N Σ_S (y − x); x ← mean(y) − h/α.
    """
    h, g_i = np.zeros_like(x), np.zeros((len(plan.clients), len(x)))
    for r, eta, s in plan.rounds():
        ends = {}
        for i in s:
            y = x
            for idx in plan.batches[r, i]:
                y = y - eta * (plan.clients[i].grad(y, idx) - g_i[i] + alpha * (y - x))
            ends[i] = y
        for i in s:
            g_i[i] -= alpha * (ends[i] - x)
        h = h - alpha * sum(plan.p[i] * (ends[i] - x) for i in s)
        x = plan.mean(ends) - h / alpha
    return x, {"h": h}, {"g": g_i}


def scaffnew(x, plan):
    """Scaffnew with K steps to every communication: ŷ = y − γ(g_i(y) − h_i), and p = 1/K.

    After the K-th step all take x = mean(ŷ), and h_i ← h_i + p/γ (x − ŷ_i).
    """
    h = [np.zeros_like(x) for _ in plan.clients]
    for r, gamma, s in plan.rounds():
        assert sorted(s) == list(range(len(plan.clients)))
        (k,) = {len(plan.batches[r, i]) for i in s}
        ends = {}
        for i in s:
            y = x
            for idx in plan.batches[r, i]:
                y = y - gamma * (plan.clients[i].grad(y, idx) - h[i])
            ends[i] = y
        x = plan.mean(ends)
        for i in s:
            h[i] = h[i] + (1 / k) / gamma * (x - ends[i])
    return x, {}, {}


def scaffold_m(x, plan, beta, server_lr=1.0):
    """SCAFFOLD-M of Cheng et al. 2023: y ← y − η(β(g_i(y) − c_i + c) + (1 − β)m).

    c_i is the mean of the round's minibatch gradients, m = mean(x − y)/(Kη), and the server's step γm
    is η_g mean(y − x), so γ = η_g K η. The box has one K for all; for clients with K_i steps each, Kη
    is mean(K_i) η: the server still moves along m, and β = 1 is SCAFFOLD II.
    """
    n, p = len(plan.clients), plan.p
    c, m, c_i = np.zeros_like(x), np.zeros_like(x), np.zeros((n, len(x)))
    for r, eta, s in plan.rounds():
        down, grads, taken = {}, {}, {}
        for i in s:
            y, seen = x, []
            for idx in plan.batches[r, i]:
                g = plan.clients[i].grad(y, idx)
                seen.append(g)
                y = y - eta * (beta * (g - c_i[i] + c) + (1 - beta) * m)
            down[i], grads[i], taken[i] = x - y, np.mean(seen, 0), len(seen)
        k = plan.mean(taken)
        m = plan.mean(down) / (k * eta)
        x = x - server_lr * k * eta * m
        for i in s:
            c_i[i] = grads[i]
        c = sum(p[i] * c_i[i] for i in range(n))
    return x, {"c": c, "m": m}, {"c": c_i}


def fednova(x, plan, server_lr=1.0):
    """FedNova with SGD: d_i the mean of τ_i gradients, x ← x − η τ_eff mean(d_i), τ_eff = mean(τ_i)."""
    for r, eta, s in plan.rounds():
        d, tau = {}, {}
        for i in s:
            y, seen = x, []
            for idx in plan.batches[r, i]:
                seen.append(plan.clients[i].grad(y, idx))
                y = y - eta * seen[-1]
            d[i], tau[i] = np.mean(seen, 0), len(seen)
        x = x - server_lr * plan.mean(tau) * eta * plan.mean(d)
    return x, {}, {}


def fedopt(x, plan, kind, server_lr, beta1, beta2, tau):
    """Algorithm 2 of Reddi et al. 2021, `kind` "adagrad", "adam" or "yogi"."""
    m, v = np.zeros_like(x), np.full_like(x, tau**2)
    for r, eta, s in plan.rounds():
        deltas = {}
        for i in s:
            y = x
            for idx in plan.batches[r, i]:
                y = y - eta * plan.clients[i].grad(y, idx)
            deltas[i] = y - x
        delta = plan.mean(deltas)
        m = beta1 * m + (1 - beta1) * delta
        if kind == "adagrad":
            v = v + delta**2
        elif kind == "yogi":
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        x = x + server_lr * m / (np.sqrt(v) + tau)
    return x, {"m": m, "v": v}, {}
