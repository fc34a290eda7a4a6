"""Tasks: the flat vector, the oracle, buffers, functions, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import uneven
from torch import nn

import fairlead as fl
from fairlead.gradients.form import ANY, Form
from fairlead.gradients.oracle import Gradients
from fairlead.task.evaluation import recorded
from fairlead.task.shard import holding


def _data(n: int = 12, p: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    return torch.tensor(rng.normal(size=(n, p))), torch.tensor(rng.integers(0, 2, n))


def _batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_parameters_are_views_of_the_vector() -> None:
    task = uneven()
    x = task.start(0)[0]
    views = task.layout.views(x)
    assert sum(v.numel() for v in views.values()) == task.dim == len(x)
    x += 1.0
    again = torch.cat([v.flatten() for v in views.values()])
    assert torch.equal(again, x)
    assert {n: (s.start, s.stop) for n, s in task.layers.items()} == {
        "1.weight": (0, 30), "1.bias": (30, 36), "3.weight": (36, 54), "3.bias": (54, 57),
    }  # fmt: skip


def test_gradients_equal_plain_pytorch() -> None:
    task = uneven()
    x, buffers = task.start(0)
    model = fl.models.mlp(5, 6, 3)().double()
    model.load_state_dict(task.state_dict(x))
    rows = task.split[2]
    output = model(task.data[0][rows])
    loss = nn.functional.cross_entropy(output, task.data[1][rows])
    loss = loss + 0.005 * sum((p**2).sum() for p in model.parameters())
    loss.backward()
    g = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(
        Gradients(task).full_single(2, x, buffers, 100)[0], g, rtol=0, atol=1e-14
    )
    torch.testing.assert_close(
        Gradients(task).full_single(2, x, buffers, 4)[0], g, rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_full_gradients_do_not_depend_on_blocks_or_company(limit: int, device: str) -> None:
    task = uneven(device)
    x, buffers = task.start(0)
    ids = np.array([0, 1, 3, 4])
    together = Gradients(task).full_stacked(ids, x, buffers.expand(4, -1), limit)[0]
    alone = torch.stack([Gradients(task).full_single(int(i), x, buffers, 5)[0] for i in ids])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-13)


def test_recorded_gradients_are_bitwise_those_of_vmap() -> None:
    task = uneven()
    captured, plain = Gradients(task, Form(capture=(ANY,))), Gradients(task)
    x = task.start(0)[0].expand(2, -1) * torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    block = task.samples(torch.tensor([0, 4]), torch.tensor([[0, 3, 5], [9, 1, 1]]))
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    none = x.new_zeros(2, 0)
    for point in (x, x[0], x):
        for w in (weights, None):
            found = [captured.stacked(point, block, w, none)[0] for _ in range(3)]
            assert all(torch.equal(g, plain.stacked(point, block, w, none)[0]) for g in found)
    assert captured.captured == 4
    assert not plain.captured


def test_recording_leaves_out_nothing_that_matters() -> None:
    """A factor 1.0 that makes numbers of integers, layers that draw numbers, and convolutions."""
    rng = np.random.default_rng(0)
    x, y = torch.tensor(rng.normal(size=(8, 3, 6, 6))), torch.tensor(rng.integers(0, 3, 8))
    head = [nn.Flatten(), nn.LazyLinear(3, dtype=torch.float64)]
    models = {
        "conv": nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), *head),
        "pool": nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3)),
        "norm": nn.Sequential(nn.Flatten(), nn.LayerNorm(108), nn.GELU(), nn.Linear(108, 3)),
    }
    models["conv"].double()(x)
    for name, model in models.items():
        task = fl.Task(model, "cross_entropy", (x, y), [range(4), range(4, 8)], dtype=x.dtype)
        pair = [Gradients(task, Form(capture=(3,))), Gradients(task)]
        point = task.start(0)[0].expand(2, -1)
        block = task.samples(torch.arange(2), torch.arange(3).expand(2, 3))
        for _ in range(2):
            one, two = (t.stacked(point, block, None, point.new_zeros(2, 0))[0] for t in pair)
            assert torch.equal(one, two), name
        assert pair[0].captured, name

    def odd(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return output[:, 0] * (1 - (y > 1) * 1.0)

    task = fl.Task(
        nn.Sequential(nn.Flatten(), nn.Linear(108, 1)), odd, (x, y), [range(8)], record=True, dtype=torch.float64
    )  # fmt: skip
    block = task.samples(torch.tensor([0]), torch.arange(8)[None])
    start = task.start(0)[0]
    oracle = Gradients(task, Form(capture=(ANY,)))
    found = [oracle.stacked(start, block, None, start.new_zeros(1, 0))[0] for _ in range(3)]
    found.append(Gradients(task).stacked(start, block, None, start.new_zeros(1, 0))[0])
    assert all(torch.equal(g, found[0]) for g in found)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_layers_that_draw_numbers_are_not_recorded() -> None:
    model = nn.Sequential(nn.FractionalMaxPool2d(2, output_size=4), nn.Flatten(), nn.Linear(48, 3))
    x, y = torch.randn(4, 3, 9, 9), torch.tensor([0, 1, 2, 0])
    task = fl.Task(model, "cross_entropy", (x, y), [range(4)])
    block = task.samples(torch.tensor([0]), torch.arange(4)[None])
    start = task.start(0)[0]
    oracle = Gradients(task, Form(capture=(ANY,)))
    found = [oracle.stacked(start, block, None, start.new_zeros(1, 0))[0] for _ in range(12)]
    assert any(not torch.equal(g, found[-1]) for g in found[5:])


def test_models_with_python_of_their_own_are_not_recorded() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(3, 2), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.layer(x)

    x, y = _data()
    task = fl.Task(Counting(), "cross_entropy", (x, y), [range(6), range(6, 12)])
    before = task.model.calls
    fl.train(task, fl.FedAvg(lr=0.1), rounds=10, steps=2, engine="vmap", objective=False)
    assert task.model.calls - before >= 20


def test_frozen_parameters_stay_and_are_no_part_of_the_vector() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    x, y = _data()
    task = fl.Task(model, "cross_entropy", (x, y), [range(6), range(6, 12)])
    assert task.dim == 10
    trained = fl.train(task, fl.FedAvg(lr=0.5), rounds=2, steps=2).model()
    assert torch.equal(trained[0].weight, frozen)
    assert not torch.equal(trained[1].weight, model[1].weight)


def test_trained_model_evaluates_as_the_run_did() -> None:
    run = fl.train(uneven(), fl.FedAvg(lr=0.3), rounds=3)
    output = run.model()(run.task.test[0])
    accuracy = (output.argmax(1) == run.task.test[1]).double().mean().item()
    assert run.history.last("accuracy") == pytest.approx(accuracy, abs=1e-12)


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_batchnorm_statistics_are_averaged_like_parameters(engine: str, device: str) -> None:
    """One round of one step by hand: running mean ← 0.9·old + 0.1·batch mean, then the mean over
    clients; a gradient, a control variate or a step size never touches them."""
    x, y = _data()
    torch.manual_seed(0)
    model = _batchnorm().double()
    layer = nn.Linear(3, 4).double()
    layer.load_state_dict(model[0].state_dict())
    task = fl.Task(
        model, "cross_entropy", (x, y), [range(6), range(6, 12)], dtype=torch.float64, device=device
    )
    for method in (fl.FedAvg(lr=0.1), fl.Scaffold(lr=5.0, server_lr=2.0)):
        run = fl.train(task, method, rounds=1, engine=engine)
        hidden = layer(x).detach()
        expected = 0.1 * (hidden[:6].mean(0) + hidden[6:].mean(0)) / 2
        found = task.state_dict(run.x, run.session.buffers)
        torch.testing.assert_close(found["1.running_mean"].cpu(), expected, rtol=0, atol=1e-12)
        assert found["1.num_batches_tracked"].item() == 1
        assert found["1.num_batches_tracked"].dtype == torch.int64


def test_batchnorm_engines_agree_and_ragged_batches_run_one_by_one() -> None:
    x, y = _data()
    task = fl.Task(
        _batchnorm(), "cross_entropy", (x, y), [range(6), range(6, 12)], dtype=torch.float64
    )
    runs = [
        fl.train(task, fl.Scaffold(lr=0.1), rounds=3, batch_size=3, engine=e)
        for e in ("vmap", "loop")
    ]
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=0, atol=1e-12)
    torch.testing.assert_close(runs[0].session.buffers, runs[1].session.buffers, rtol=0, atol=1e-12)
    ragged = fl.Task(
        _batchnorm(), "cross_entropy", (x, y), [range(5), range(5, 12)], dtype=torch.float64
    )
    run = fl.train(ragged, fl.Scaffold(lr=0.1), rounds=1, batch_size=5)
    assert run.engine.startswith("loop: BatchNorm")
    with pytest.raises(fl.FairleadError, match='use engine="loop"'):
        fl.train(ragged, fl.Scaffold(lr=0.1), rounds=1, batch_size=5, engine="vmap")
    with pytest.raises(fl.FairleadError, match="client 1 has a batch of one sample"):
        fl.train(ragged, fl.Scaffold(lr=0.1), rounds=1, batch_size=3)
    fl.train(ragged, fl.Scaffold(lr=0.1), rounds=1, batch_size=3, drop_last=True)


def test_functions_of_a_vector_one_a_client() -> None:
    functions = [lambda v: (v - 1.0).pow(2).sum(), lambda v: 2 * (v + 2.0).pow(2).sum()]
    task = fl.Task.from_functions(
        functions, torch.zeros(3, dtype=torch.float64), optimum=torch.full((3,), -1.0)
    )
    run = fl.train(task, fl.Scaffold(lr=0.05), rounds=150, steps=3)
    assert run.engine.startswith("loop: its functions")
    assert run.history.last("distance") < 1e-10


def test_factories_follow_the_seed_and_modules_keep_their_weights() -> None:
    x, y = _data()
    owners = [range(6), range(6, 12)]
    made = fl.Task(fl.models.mlp(3, 4, 2), "cross_entropy", (x, y), owners)
    assert not torch.equal(made.start(0)[0], made.start(1)[0])
    assert torch.equal(made.start(1)[0], made.start(1)[0])
    kept = fl.Task(fl.models.mlp(3, 4, 2)(), "cross_entropy", (x, y), owners)
    assert torch.equal(kept.start(0)[0], kept.start(1)[0])


def test_moving_a_task_keeps_its_values() -> None:
    task = uneven()
    single = task.to(dtype=torch.float32)
    assert single.data[0].dtype == single.start(0)[0].dtype == torch.float32
    assert task.data[0].dtype == torch.float64
    x = single.start(0)[0]
    torch.testing.assert_close(single.objective(x).double(), task.objective(x.double()))


def test_objective_weights_clients_not_samples() -> None:
    task = uneven()
    x, buffers = task.start(0)
    each = []
    for i in range(task.clients):
        part = tuple(t[task.split[i]] for t in task.data)
        each.append(Gradients(task).mean_loss(x, None, buffers, *part)[0])
    ridge = task.l2 / 2 * x @ x
    torch.testing.assert_close(task.objective(x), torch.stack(each).mean() + ridge)
    sizes = torch.tensor(task.sizes / task.sizes.sum())
    torch.testing.assert_close(task.objective(x, "size"), sizes @ torch.stack(each) + ridge)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "cross_entrop"}, "did you mean 'cross_entropy'"),
        ({"loss": lambda output, target: output.mean()}, "return one value per sample"),
        ({"clients": [range(6), []]}, "client 1 has no data"),
        ({"clients": []}, "no clients"),
        ({"clients": [range(6), range(6, 14)]}, "contains sample 12"),
        ({"data": (torch.zeros(12, 3), torch.zeros(11).long())}, "12, 11 rows"),
        ({"data": (torch.full((12, 3), float("nan")), torch.zeros(12).long())}, "first in row 0"),
        ({"data": (torch.zeros(12, 5), torch.zeros(12).long())}, "do not fit samples"),
        ({"test": (torch.full((2, 3), float("inf")), torch.zeros(2).long())}, "test data tensor 0"),
        ({"model": nn.Flatten()}, "no trainable parameters"),
    ],
)
def test_bad_input_is_one_sentence_before_training(change: dict, message: str) -> None:
    x, y = _data()
    given = {"model": nn.Linear(3, 2), "loss": "cross_entropy", "data": (x, y),
             "clients": [range(6), range(6, 12)]} | change  # fmt: skip
    with pytest.raises(fl.FairleadError, match=message) as caught:
        fl.Task(**given)
    assert "\n" not in str(caught.value) or "do not fit" in str(caught.value)


def test_integer_buffers_are_constants_and_counters_stay_whole() -> None:
    class Positions(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("pos", torch.arange(50))

    x, y = _data(30)
    task = fl.Task(Positions(), "cross_entropy", (x, y), fl.splits.iid(y, 10))
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=3)
    assert torch.equal(run.model().pos, torch.arange(50))
    norm = fl.Task(_batchnorm(), "cross_entropy", (x, y), fl.splits.iid(y, 10))
    run = fl.train(norm, fl.FedAvg(lr=0.1), rounds=3, steps=2)
    assert run.model()[1].num_batches_tracked.item() == 6


def test_full_gradients_move_statistics_when_there_are_no_steps() -> None:
    x, y = _data()
    owners = [range(6), range(6, 12)]
    task = fl.Task(_batchnorm(), "cross_entropy", (x, y), owners, dtype=torch.float64)
    runs = [
        fl.train(task, method, rounds=3, engine=engine)
        for method in (fl.FedSGD(lr=0.1), fl.FedAvg(lr=0.1))
        for engine in ("vmap", "loop")
    ]
    for run in runs[1:]:
        torch.testing.assert_close(run.x, runs[0].x, rtol=0, atol=1e-12)
        torch.testing.assert_close(run.session.buffers, runs[0].session.buffers, rtol=0, atol=1e-12)


def test_full_gradients_with_batchnorm_see_all_of_a_client_at_once() -> None:
    x, y = _data()
    owners = [range(6), range(6, 12)]
    task = fl.Task(_batchnorm(), "cross_entropy", (x, y), owners, dtype=torch.float64)
    x0, b = task.start(0)
    small = Gradients(task).full_stacked(np.array([0, 1]), x0, b.expand(2, -1), limit=4)[0]
    large = torch.stack([Gradients(task).full_single(i, x0, b, 100)[0] for i in (0, 1)])
    torch.testing.assert_close(small, large, rtol=0, atol=1e-13)


def test_batchnorm_with_batches_that_turn_ragged_later_leaves_vmap_for_that_round() -> None:
    x, y = _data()
    owners = [range(6), range(6, 12)]
    table = {(0, 0): [[0, 1, 2]], (0, 1): [[0, 1, 2]], (1, 0): [[3, 4]], (1, 1): [[1, 2, 3, 4]]}
    task = fl.Task(_batchnorm(), "cross_entropy", (x, y), owners, dtype=torch.float64)
    runs = [
        fl.train(task, fl.FedAvg(lr=0.1), rounds=2, batches=table, engine=e)
        for e in ("vmap", "loop")
    ]
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=0, atol=1e-12)


def test_own_losses_are_called_every_time() -> None:
    scale = [1.0]
    x, y = _data()

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return scale[0] * nn.functional.cross_entropy(output, target, reduction="none")

    task = fl.Task(nn.Linear(3, 2), loss, (x, y), [range(6), range(6, 12)])
    fl.train(task, fl.FedAvg(lr=0.1), rounds=6, steps=2, engine="vmap")
    scale[0] = 0.0
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=6, steps=2, engine="vmap")
    assert torch.equal(run.x, task.start(0)[0])


def test_the_users_module_is_left_alone() -> None:
    x, y = _data()
    module = nn.Linear(3, 2).eval()
    owners = [range(6), range(6, 12)]
    single = fl.Task(module, "cross_entropy", (x, y), owners)
    fl.Task(module, "cross_entropy", (x, y), owners, dtype=torch.float64)
    assert module.weight.dtype == torch.float32
    assert not module.training
    fl.train(single, fl.FedAvg(lr=0.1), rounds=1, seed=1)


def test_tied_parameters_and_hidden_buffers_come_back_in_the_model(tmp_path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight
            self.register_buffer("shift", torch.ones(3), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)) + self.shift

    x, y = _data()
    task = fl.Task(Tied(), "cross_entropy", (x, y), [range(6), range(6, 12)], test=(x, y))
    assert task.dim == 9
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=2)
    model = run.model()
    assert model.a.weight is model.b.weight
    assert torch.equal(model.a.weight.flatten(), run.x)
    run.save(tmp_path / "m.safetensors")
    from safetensors.torch import load_file

    assert torch.equal(load_file(tmp_path / "m.safetensors")["a.weight"].flatten(), run.x)


def test_distance_is_only_recorded_for_the_objective_it_belongs_to() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), np.where(rng.random(30) < 0.5, 1.0, -1.0)
    task = fl.problems.logistic_regression(x, y, [list(range(4)), list(range(4, 30))])
    even = fl.train(task, fl.FedSGD(lr=0.5), rounds=2)
    sized = fl.train(task, fl.FedSGD(lr=0.5), rounds=2, weighting="size")
    assert "distance" in even.history
    assert "distance" not in sized.history
    with pytest.raises(fl.FairleadError, match="no metric for the target 'gap'"):
        fl.train(task, fl.FedSGD(lr=0.5), rounds=2, weighting="size", target={"gap": 1e-6})


@pytest.mark.parametrize("objective", [True, False])
def test_recorded_names_are_those_that_evaluate_measures(objective: bool) -> None:
    x, y = _data()
    plain = fl.Task(
        nn.Linear(3, 2), "cross_entropy", (x, y), [range(6), range(6, 12)], test=(x, y), l2=0.1
    )
    game = fl.problems.quadratic_game(dim=2)
    for task in (plain, game, game.replace(optimum=None), fl.problems.agnostic(plain)):
        found = task.evaluate(task.start()[0], objective=objective)
        assert set(recorded(task, "uniform", objective)) == set(found)


def test_sample_bytes_follow_the_data() -> None:
    x, y = _data()
    task = fl.Task(nn.Linear(3, 2), "cross_entropy", (x, y), [range(6), range(6, 12)], keep="host")
    assert (task.ahead, task.sample_bytes) == (True, 4 * 8)  # stored as given, in float64
    part = holding(task, np.array([1]))
    assert (part.ahead, part.sample_bytes) == (False, 3 * 4 + 8)
    assert holding(task, np.array([], dtype=int)).sample_bytes == 1
    moved = fl.Task(nn.Linear(3, 2), "cross_entropy", (x, y), [range(6), range(6, 12)])
    assert (moved.ahead, moved.sample_bytes) == (False, 3 * 4 + 8)
    assert moved.to(dtype=torch.float64).sample_bytes == 4 * 8


@pytest.mark.parametrize("clients", [[np.arange(12) < 6, np.arange(12) >= 6], np.arange(12) % 2])
def test_masks_and_owner_lists_are_no_index_lists(clients) -> None:
    x, y = _data()
    with pytest.raises(fl.FairleadError, match=r"np\.flatnonzero"):
        fl.Task(nn.Linear(3, 2), "cross_entropy", (x, y), clients)


@pytest.mark.parametrize(
    ("loss", "target", "message"),
    [
        ("cross_entropy", torch.arange(12) % 7, "labels run from 0 to 6"),
        ("logistic", torch.arange(12) % 2, "−1 and \\+1"),
    ],
)
def test_labels_that_do_not_fit_are_refused(loss: str, target: torch.Tensor, message: str) -> None:
    model = nn.Linear(3, 2 if loss == "cross_entropy" else 1)
    with pytest.raises(fl.FairleadError, match=message):
        fl.Task(model, loss, (_data()[0], target), [range(6), range(6, 12)])
