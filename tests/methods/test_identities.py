"""Which method reduces to which, and rounds by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import TOY_A, TOY_B, toy, uneven

import fairlead as fl

RUN = {"rounds": 4, "cohort": 3, "batch_size": 4, "epochs": 2, "seed": 3}
ALL = {"rounds": 4, "batch_size": 4, "steps": 3, "seed": 3}
DECAY = fl.schedules.Exponential(0.2, 0.9)


def _equal(
    a: fl.Algorithm, b: fl.Algorithm, run: dict, atol: float = 1e-13
) -> tuple[fl.Run, fl.Run]:
    one, two = fl.train(uneven(), a, **run), fl.train(uneven(), b, **run)
    torch.testing.assert_close(one.x, two.x, rtol=0, atol=atol)
    start = one.task.start(3)[0]
    assert (one.x - start).abs().max() > 1e-3
    return one, two


def _differ(a: fl.Algorithm, b: fl.Algorithm, run: dict) -> None:
    one, two = fl.train(uneven(), a, **run), fl.train(uneven(), b, **run)
    assert (one.x - two.x).abs().max() > 1e-5


def _kept(run: fl.Run) -> dict[str, torch.Tensor]:
    return run.client_states().tensors()


@pytest.mark.parametrize("layers", [-2, ["1", "3"], torch.ones(57)], ids=["count", "names", "mask"])
def test_fedpvr_on_everything_is_scaffold(layers) -> None:
    a, b = _equal(fl.FedPVR(lr=DECAY, layers=layers), fl.Scaffold(lr=DECAY), RUN)
    torch.testing.assert_close(_kept(a)["c"], _kept(b)["c"], rtol=0, atol=1e-13)


@pytest.mark.parametrize("compressor", [None, fl.QSGD(4)], ids=["plain", "qsgd"])
@pytest.mark.parametrize("warm", [False, True], ids=["zero", "warm"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_fedpvr_on_everything_is_scaffold_in_every_option(option, warm, compressor) -> None:
    same = {"lr": DECAY, "option": option, "warm_start": warm, "compressor": compressor}
    a, b = _equal(fl.FedPVR(layers="from:0", **same), fl.Scaffold(**same), RUN)
    torch.testing.assert_close(_kept(a)["c"], _kept(b)["c"], rtol=0, atol=1e-13)
    torch.testing.assert_close(a.state.c, b.state.c, rtol=0, atol=1e-13)
    assert a.counters == b.counters
    assert (a.ledger.up, a.ledger.down) == (b.ledger.up, b.ledger.down)


@pytest.mark.parametrize("layers", [0, [], torch.zeros(57)], ids=["count", "names", "mask"])
def test_fedpvr_on_nothing_is_fedavg(layers) -> None:
    _equal(fl.FedPVR(lr=DECAY, layers=layers), fl.FedAvg(lr=DECAY), RUN)
    m = 0.9
    _equal(fl.FedPVR(lr=DECAY, layers=layers, momentum=m), fl.FedAvg(lr=DECAY, momentum=m), RUN)
    kept = {"lr": DECAY, "momentum": m, "momentum_reset": False}
    a, b = _equal(fl.FedPVR(layers=layers, **kept), fl.FedAvg(**kept), RUN)
    torch.testing.assert_close(
        _kept(a)["slots/buffer"], _kept(b)["slots/buffer"], rtol=0, atol=1e-13
    )


def test_fedpvr_parts_by_name_and_place() -> None:
    task = uneven()
    by_count = fl.FedPVR(lr=0.1, layers=-1).bind(task.layers)
    by_name = fl.FedPVR(lr=0.1, layers=["3.weight", "3.bias"]).bind(task.layers)
    assert by_count.part == by_name.part == slice(36, 57)
    assert fl.FedPVR(lr=0.1, layers=["1.bias"]).bind(task.layers).part == slice(30, 36)
    apart = fl.FedPVR(lr=0.1, layers=["1.bias", "3.bias"]).bind(task.layers).part
    assert apart.tolist() == [*range(30, 36), *range(54, 57)]
    assert fl.FedPVR(lr=0.1, layers="from:2").bind(task.layers).part == slice(36, 57)
    assert fl.FedPVR(lr=0.1, layers="from:3").bind(task.layers).part == slice(54, 57)
    assert fl.FedPVR(lr=0.1, layers="from:4").bind(task.layers).part == slice(57, 57)
    _differ(by_count, fl.Scaffold(lr=0.1), RUN)
    _differ(by_count, fl.FedAvg(lr=0.1), RUN)
    for layers, message in (
        (-3, "must be in"),
        (["fc"], "there is no layer 'fc'"),
        (torch.ones(5), "shape"),
        ("from:5", "has 4 parameter tensors"),
        ("from:x", "has 4 parameter tensors"),
    ):
        with pytest.raises(fl.FairleadError, match=message):
            fl.train(task, fl.FedPVR(lr=0.1, layers=layers), rounds=1)


def test_fedavg_momentum_by_hand() -> None:
    """f = x²/2 from 1 with η = ½, m = ½: 1 → ½ → ½ − ½(½ + ½) = 0; the next round starts anew."""
    task = fl.problems.quadratics([[[1.0]]], [[0.0]], [1.0])
    method = fl.FedAvg(lr=0.5, momentum=0.5)
    assert fl.train(task, method, rounds=1, steps=2).x.item() == 0.0
    task = fl.problems.quadratics([[[0.0]]], [[1.0]], [0.0])  # the gradient is −1 everywhere
    assert fl.train(task, method, rounds=1, steps=3).x.item() == 0.5 * (1 + 1.5 + 1.75)
    assert fl.train(task, method, rounds=2, steps=3).x.item() == 2 * 0.5 * (1 + 1.5 + 1.75)


def test_the_papers_layer_numbers_count_parameter_tensors() -> None:
    """The FedPVR paper's VGG-11 starts at tensor 16, its ResNet-8 at the classifier."""
    x, y = torch.zeros(4, 3, 32, 32), torch.zeros(4, dtype=torch.int64)
    for model, first, last in ((fl.models.vgg11(), 16, -3), (fl.models.resnet8(), 27, -1)):
        layers = fl.Task(model, "cross_entropy", (x, y), [[0, 1, 2, 3]]).layers
        part = fl.FedPVR(lr=0.1, layers=f"from:{first}").bind(layers).part
        assert part == fl.FedPVR(lr=0.1, layers=last).bind(layers).part


def test_momentum_that_is_kept_by_hand() -> None:
    """The gradient is −1 everywhere, η = m = ½: the second round goes on with the buffer of the first."""
    task = fl.problems.quadratics([[[0.0]]], [[1.0]], [0.0])
    method = fl.FedAvg(lr=0.5, momentum=0.5, momentum_reset=False)
    run = fl.train(task, method, rounds=2, steps=2)
    assert run.x.item() == 0.5 * (1 + 1.5 + 1.75 + 1.875)
    assert run.client_states().slots["buffer"].item() == -1.875
    both = fl.problems.quadratics([[[0.0]]] * 2, [[1.0]] * 2, [0.0])
    run = fl.train(both, method, rounds=3, steps=[1, 3], cohort=[[0, 1], [1], [0]])
    assert run.client_states().slots["buffer"].tolist() == [
        [-1.5],
        [-1.96875],
    ]  # two steps, and six
    assert run.x.item() == 0.5 * ((1 + 1 + 1.5 + 1.75) / 2 + 1.875 + 1.9375 + 1.96875 + 1.5)


def test_fedpaq_with_identity_is_fedavg() -> None:
    _equal(fl.FedPAQ(lr=DECAY, compressor=fl.Identity()), fl.FedAvg(lr=DECAY), RUN, atol=0)
    _differ(fl.FedPAQ(lr=DECAY), fl.FedAvg(lr=DECAY), RUN)


def test_scaffold_with_identity_is_scaffold_and_keeps_its_mean_under_quantization() -> None:
    _equal(fl.Scaffold(lr=DECAY, compressor=fl.Identity()), fl.Scaffold(lr=DECAY), RUN)
    for q in (fl.QSGD(2), fl.TopK(0.1), fl.ErrorFeedback(fl.TopK(0.1))):
        run = fl.train(uneven(), fl.Scaffold(lr=DECAY, compressor=q), **RUN, dropout=0.2)
        torch.testing.assert_close(run.state.c, _kept(run)["c"].mean(0), rtol=0, atol=1e-14)


def test_fedlomo_with_one_step_is_gradient_descent_and_fullbatch_is_fedavg() -> None:
    _equal(fl.FedLOMO(lr=0.2), fl.FedSGD(lr=0.2), {"rounds": 4, "steps": 1, "seed": 3})
    # on whole batches g(w) + (v − g(w₋)) telescopes to g(w)
    _equal(fl.FedLOMO(lr=DECAY), fl.FedAvg(lr=DECAY), {"rounds": 4, "steps": 4, "seed": 3})
    _differ(fl.FedLOMO(lr=DECAY), fl.FedAvg(lr=DECAY), RUN)
    _differ(fl.FedLOMO(lr=DECAY), fl.FedLOMO(lr=DECAY, damping=0.8), RUN)


def test_fedlomo_by_hand() -> None:
    """One client with samples b = 0, 2 of f = mean (x − b)²/2, batches {1}, {0}, from x = 0, η = ½:
    v = −1, w = ½; the second batch is b = 0: v = g(½) − g(0) + v = ½ − 0 − 1, w = ½ + ¼."""
    data = [torch.tensor([[0.0], [2.0]], dtype=torch.float64)]
    task = fl.Task.from_function(
        lambda x, b: ((x - b) ** 2).sum() / 2, data, torch.zeros(1, dtype=torch.float64), [[0, 1]]
    )
    run = fl.train(task, fl.FedLOMO(lr=0.5), rounds=1, batches={(0, 0): [[1], [0]]})
    assert run.x.item() == 0.75
    damped = fl.train(task, fl.FedLOMO(lr=0.5, damping=0.5), rounds=1, batches={(0, 0): [[1], [0]]})
    # v = ½ + ½(−1 − 0) = 0
    assert damped.x.item() == 0.5


def test_fedglomo_with_beta_one_is_fedlomo() -> None:
    more = {"damping": 0.8, "first_batch": 6}
    _equal(fl.FedGLOMO(lr=DECAY, beta=1.0, **more), fl.FedLOMO(lr=DECAY, **more), RUN)
    _differ(fl.FedGLOMO(lr=DECAY, beta=0.2, **more), fl.FedLOMO(lr=DECAY, **more), RUN)


def test_fedglomo_in_one_vector_equals_two() -> None:
    _equal(
        fl.FedGLOMO(lr=DECAY, beta=0.3),
        fl.FedGLOMO(lr=DECAY, beta=0.3, compressor=fl.Identity()),
        RUN,
    )


def test_fedglomo_by_hand() -> None:
    """f = x²/2, one step of η = ½ a round, β = ½, from 1. Round 0: u = a = ½, w = ½. Round 1: a = ¼ and
    b = ½, so u = ½·¼ + ½(½ + ¼ − ½) = ¼, w = ¼."""
    task = fl.problems.quadratics([[[1.0]]], [[0.0]], [1.0])
    run = fl.train(task, fl.FedGLOMO(lr=0.5, beta=0.5), rounds=2)
    assert (run.x.item(), run.state.u.item(), run.state.last.item()) == (0.25, 0.25, 0.5)


def test_mime_without_momentum_and_one_step_is_gradient_descent() -> None:
    one = {"rounds": 4, "steps": 1, "batch_size": 2, "seed": 3}
    _equal(fl.Mime(lr=0.2, beta=0.0), fl.FedSGD(lr=0.2), one)
    _equal(fl.Mime(lr=0.2, optimizer="mvr", a=1.0), fl.FedSGD(lr=0.2), one)
    _equal(fl.MimeLite(lr=DECAY, beta=0.0), fl.FedAvg(lr=DECAY), RUN)
    _equal(fl.MimeLite(lr=DECAY, optimizer="mvr", a=1.0), fl.FedAvg(lr=DECAY), RUN)


def test_mime_with_one_step_is_centralized_momentum() -> None:
    """x ← x − η((1 − β)c + βs), s ← (1 − β)c + βs: the statistic is frozen within a round."""
    run = fl.train(toy(start=2.0), fl.Mime(lr=0.1, beta=0.9), rounds=5)
    x, s = 2.0, 0.0
    for _ in range(5):
        c = (TOY_A * (x - TOY_B)).mean()
        s = 0.1 * c + 0.9 * s
        x -= 0.1 * s
    assert run.x.item() == pytest.approx(x, abs=1e-14)
    assert run.state.s.item() == pytest.approx(s, abs=1e-14)


def test_mime_mvr_with_one_step_is_storm() -> None:
    run = fl.train(toy(start=2.0), fl.Mime(lr=0.1, optimizer="mvr", a=0.3), rounds=5)
    x, last, m = 2.0, 2.0, 0.0
    for k in range(5):
        c, before = (TOY_A * (x - TOY_B)).mean(), (TOY_A * (last - TOY_B)).mean()
        a = 1.0 if k == 0 else 0.3
        m = a * c + (1 - a) * (m + c - before)
        x, last = x - 0.1 * m, x
    assert run.x.item() == pytest.approx(x, abs=1e-14)


def test_fedcomgate_is_scaffold_with_all_clients() -> None:
    a, b = _equal(fl.FedCOMGATE(lr=DECAY), fl.Scaffold(lr=DECAY), ALL)
    shift = _kept(b)["c"] - b.state.c
    torch.testing.assert_close(_kept(a)["delta"], shift, rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [3, [1, 5, 2, 4, 3]])
def test_fedcomgate_keeps_its_tracking_terms_at_mean_zero(steps) -> None:
    method = fl.FedCOMGATE(lr=DECAY, compressor=fl.QSGD(2), gamma=0.8)
    run = fl.train(uneven(), method, rounds=5, batch_size=4, steps=steps)
    delta = _kept(run)["delta"]
    assert delta.abs().max() > 1e-3
    assert delta.mean(0).abs().max() < 1e-14


def test_fedcomgate_with_its_exact_own_direction() -> None:
    """The same without compression; with it the mean tracking term holds the quantization errors."""
    _equal(fl.FedCOMGATE(lr=DECAY, own="exact"), fl.FedCOMGATE(lr=DECAY), ALL, atol=0)
    qsgd = {"lr": DECAY, "compressor": fl.QSGD(2)}
    run = fl.train(uneven(), fl.FedCOMGATE(own="exact", **qsgd), **ALL)
    assert _kept(run)["delta"].mean(0).abs().max() > 1e-3
    _differ(fl.FedCOMGATE(own="exact", **qsgd), fl.FedCOMGATE(**qsgd), ALL)


@pytest.mark.parametrize("kind", [fl.Mime, fl.MimeLite])
@pytest.mark.parametrize("optimizer", ["sgdm", "mvr"])
def test_mime_on_a_batch(kind, optimizer) -> None:
    """As many samples as a client has are all of them; fewer cost fewer gradients and give another run."""
    whole = fl.train(uneven(), kind(lr=DECAY, optimizer=optimizer), **RUN)
    large = fl.train(uneven(), kind(lr=DECAY, optimizer=optimizer, batch=22), **RUN)
    small = fl.train(uneven(), kind(lr=DECAY, optimizer=optimizer, batch=3), **RUN)
    assert torch.equal(whole.x, large.x)
    assert whole.counters == large.counters
    assert small.counters.gradients < whole.counters.gradients
    assert (small.x - whole.x).abs().max() > 1e-5


def test_mime_on_a_batch_by_hand() -> None:
    """One step of Mime with β = 0 is a step along the gradient of the batch, whichever samples it has: with
    batch 1 it ends at one of the samples when η = 1."""
    data = [torch.tensor([[1.0], [2.0], [4.0], [8.0]], dtype=torch.float64)]
    task = fl.Task.from_function(
        lambda x, b: ((x - b) ** 2).sum() / 2, data, torch.zeros(1, dtype=torch.float64), [range(4)]
    )
    ends = {
        fl.train(task, fl.Mime(lr=1.0, beta=0.0, batch=1), rounds=1, steps=1, seed=seed).x.item()
        for seed in range(40)
    }
    assert ends == {1.0, 2.0, 4.0, 8.0}


def test_scaffold_s_on_whole_batches_is_the_update_of_scaffolds_theorem_iv() -> None:
    """y ← y − η(∇f_i(y) − ∇f_i(x) + ∇f(x)), all clients, on f_i = a_i/2·(x − b_i)²."""
    run = fl.train(toy(start=2.0), fl.ScaffoldS(lr=0.1), rounds=3, steps=4)
    x = 2.0
    for _ in range(3):
        y, g = np.full(4, x), (TOY_A * (x - TOY_B)).mean()
        for _ in range(4):
            y = y - 0.1 * (TOY_A * (y - x) + g)
        x = y.mean()
    assert run.x.item() == pytest.approx(x, abs=1e-14)


def test_mirror_descent_with_total_is_scaffold_s_without_local_steps() -> None:
    """γ_l = 0: the τ mappings of a round are all taken at its start, and their sum is the step."""
    run = fl.train(toy(start=2.0), fl.MirrorDescent(lr=0.02, total=True), rounds=3, steps=4)
    x = 2.0
    for _ in range(3):
        x = x - 0.02 * sum((TOY_A * (x - TOY_B)).mean() for _ in range(4))
    assert run.x.item() == pytest.approx(x, abs=1e-14)


def test_scaffnew_is_scaffold_with_all_clients_and_gradient_descent_with_one_step() -> None:
    a, b = _equal(fl.Scaffnew(lr=DECAY), fl.Scaffold(lr=DECAY), ALL)
    torch.testing.assert_close(_kept(a)["h"], _kept(b)["c"] - b.state.c, rtol=0, atol=1e-12)
    _equal(fl.Scaffnew(lr=0.2), fl.FedSGD(lr=0.2), {"rounds": 4, "steps": 1, "seed": 3})
    _equal(fl.Scaffnew(lr=0.2, p=1 / 3), fl.Scaffnew(lr=0.2), ALL)


@pytest.mark.slow
def test_scaffnew_with_a_coin_reaches_the_optimum() -> None:
    settings = {"rounds": 300, "eval_every": 300, "steps": fl.Geometric(0.2)}
    run = fl.train(toy(), fl.Scaffnew(lr=0.2, p=0.2), **settings)
    assert run.history.last("distance") < 1e-10
    draws = [fl.Geometric(0.2).draw(0, k) for k in range(4000)]
    assert np.mean(draws) == pytest.approx(5, abs=5 * np.sqrt(20 / 4000))
    assert min(draws) == 1


def test_scaffold_m_without_momentum_is_scaffold() -> None:
    _equal(fl.ScaffoldM(lr=DECAY, beta=1.0), fl.Scaffold(lr=DECAY), RUN)
    _differ(fl.ScaffoldM(lr=DECAY, beta=0.5), fl.Scaffold(lr=DECAY), RUN)
    run = fl.train(uneven(), fl.ScaffoldM(lr=DECAY, beta=0.3), **RUN, dropout=0.2)
    torch.testing.assert_close(run.state.c, _kept(run)["c"].mean(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize("method", [fl.FedDyn(lr=0.05, alpha=0.5), fl.ScaffoldM(lr=0.05, beta=0.5)])
def test_corrected_methods_reach_the_optimum_of_the_toy(method: fl.Algorithm) -> None:
    run = fl.train(toy(), method, rounds=400, steps=10, eval_every=400)
    assert run.history.last("distance") < 1e-10


def test_feddyn_keeps_h_the_mean_of_its_terms() -> None:
    for q in (None, fl.QSGD(2)):
        run = fl.train(uneven(), fl.FedDyn(lr=DECAY, alpha=0.5, compressor=q), **RUN, dropout=0.2)
        torch.testing.assert_close(run.state.h, _kept(run)["g"].mean(0), rtol=0, atol=1e-13)


def test_feddyn_first_round_by_hand() -> None:
    """f = x²/2 from 1, α = 1, one step of ½: y = ½, g = ½, h = ½, x = ½ − ½ = 0."""
    task = fl.problems.quadratics([[[1.0]]], [[0.0]], [1.0])
    run = fl.train(task, fl.FedDyn(lr=0.5, alpha=1.0), rounds=1)
    assert (run.x.item(), run.state.h.item()) == (0.0, 0.5)


def test_fednova_is_fedavg_for_equal_work_and_consistent_for_uneven() -> None:
    _equal(fl.FedNova(lr=DECAY), fl.FedAvg(lr=DECAY), ALL)
    # with tiny steps uneven work only scales FedNova, but moves FedAvg towards who does more
    settings = {"rounds": 400, "steps": [1, 2, 4, 8], "eval_every": 400}
    nova = fl.train(toy(), fl.FedNova(lr=5e-3), **settings)
    avg = fl.train(toy(), fl.FedAvg(lr=5e-3), **settings)
    assert nova.history.last("distance") < 0.06
    assert avg.history.last("distance") > 0.3


def test_adaptive_servers_by_hand() -> None:
    """Two rounds on f = x²/2 from 1 with one step of ½, so that Δ = −x/2."""
    task = fl.problems.quadratics([[[1.0]]], [[0.0]], [1.0])
    eta, b1, b2, tau = 0.1, 0.9, 0.99, 1e-3
    rules = {
        fl.FedAdagrad: lambda v, q: v + q,
        fl.FedAdam: lambda v, q: b2 * v + (1 - b2) * q,
        fl.FedYogi: lambda v, q: v - (1 - b2) * q * np.sign(v - q),
    }
    for kind, rule in rules.items():
        run = fl.train(task, kind(lr=0.5, server_lr=eta), rounds=2)
        x, m, v = 1.0, 0.0, tau**2
        for _ in range(2):
            delta = -x / 2
            m, v = b1 * m + (1 - b1) * delta, rule(v, delta**2)
            x += eta * m / (np.sqrt(v) + tau)
        assert run.x.item() == pytest.approx(x, abs=1e-14)


def test_all_first_and_citations() -> None:
    sampler = fl.AllFirst(2)
    assert sampler.cohort(0, 0, 5).tolist() == [0, 1, 2, 3, 4]
    assert len(sampler.cohort(0, 1, 5)) == 2
    assert "karimireddy2020scaffold" in fl.cite(fl.Scaffold(lr=0.1))
    assert fl.cite("fedpaq-m").startswith("@inproceedings{reisizadeh2020fedpaq")
    assert "alistarh2017qsgd" in fl.cite(fl.FedPAQ(lr=0.1))
    for name in [*fl.METHODS, *fl.PRESETS]:
        assert fl.cite(name).count("author = {") == 1
    with pytest.raises(fl.FairleadError, match="did you mean 'mime'"):
        fl.cite("mim")


def test_scaffnew_keeps_its_shifts_at_mean_zero_for_uneven_clients() -> None:
    run = fl.train(toy(), fl.Scaffnew(lr=0.05), rounds=300, steps=[1, 10, 3, 5], eval_every=300)
    assert _kept(run)["h"].mean().abs() < 1e-12
    assert run.history.last("distance") < 1e-10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.ErrorFeedback(fl.QSGD(2)), "the residual would grow"),
        (lambda: fl.FedLOMO(lr=0.1, first_batch=0), "first_batch is 0"),
        (lambda: fl.FedCOMGATE(lr=0.1, gamma=-1.0), "gamma is -1"),
        (lambda: fl.FedAdam(lr=0.1, beta1=2.0), "beta1 is 2"),
        (lambda: fl.FedPVR(lr=0.1, momentum=1.5), r"momentum is 1\.5"),
        (lambda: fl.FedAvg(lr=0.1, momentum_reset=False), "momentum_reset=False needs momentum"),
        (lambda: fl.FedPVR(lr=0.1, momentum_reset=False), "momentum_reset=False needs momentum"),
        (lambda: fl.FedPVR(lr=0.1, option="III"), "no option 'III'"),
        (lambda: fl.FedCOMGATE(lr=0.1, own="mine"), "no own direction 'mine'"),
        (lambda: fl.Mime(lr=0.1, batch=0), "batch is 0"),
        (lambda: fl.Mime(lr=0.1, beta=DECAY), "beta is Exponential"),
        (lambda: fl.FedGLOMO(lr=0.1, beta=1.5), r"beta is 1\.5"),
        (
            lambda: fl.FedGLOMO(lr=0.1, beta=fl.schedules.Constant(0.1, per="step")),
            "beta changes with the rounds",
        ),
        (
            lambda: fl.train(uneven(), fl.FedGLOMO(lr=0.1, beta=lambda k: 2.0 * k), rounds=2),
            r"beta is 2\.0: must be in \[0, 1\]",
        ),
        (lambda: fl.ScaffoldM(lr=0.1, beta=0.0), "beta is 0"),
        (lambda: fl.Mime(lr=0.1, optimizer="adam"), "no optimizer 'adam'"),
        (
            lambda: fl.train(uneven(), fl.FedAvg(lr=0.1, compressor="qsgd:2"), rounds=1),
            "pass an object such as",
        ),
    ],
)
def test_wrong_settings_are_sentences(make, message: str) -> None:
    with pytest.raises(fl.FairleadError, match=message):
        make()
