"""Models of several inputs, by position and by name, and with dicts as outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fairlead as fl
from fairlead.engine import autotune
from fairlead.gradients import cuda_graph
from fairlead.task import task as task_module
from fairlead.task.arrangement import Arrangement

N, LENGTH, WORDS, CLASSES = 31, 6, 11, 3
OWNERS = [range(9), range(9, 13), range(13, 22), range(22, 23), range(23, N)]


def _data() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, LENGTH + 1, (N,), generator=g)
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    return {
        "ids": torch.randint(1, WORDS, (N, LENGTH), generator=g) * mask,
        "mask": mask,
        "image": torch.randn(N, 2, 4, generator=g),
        "y": torch.randint(CLASSES, (N,), generator=g),
    }


class Text(nn.Module):
    """The mean embedding of tokens, as models of `transformers` take and return it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        vectors = self.embed(input_ids) * attention_mask[..., None]
        mean = vectors.sum(1) / attention_mask.sum(1, keepdim=True)
        return {"hidden": mean, "logits": self.head(mean)}


class Both(nn.Module):
    """An image, and tokens with their mask, as nested arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = Text(), nn.Linear(8, CLASSES)

    def forward(self, image: Tensor, text: tuple[Tensor, Tensor]) -> Tensor:
        return self.image(image.flatten(1)) + self.text(*text)["logits"]


def _named(**settings: Any) -> fl.Task:
    d = _data()
    inputs = {"input_ids": d["ids"], "attention_mask": d["mask"]}
    backwards = {name: inputs[name] for name in reversed(inputs)}
    return _made(Text, (inputs, d["y"]), (backwards, d["y"]), **settings)


def _nested(**settings: Any) -> fl.Task:
    d = _data()
    inputs = d["image"], (d["ids"], d["mask"])
    return _made(Both, (inputs, d["y"]), (inputs, d["y"]), **settings)


def _targets(**settings: Any) -> fl.Task:
    """Two inputs by position; class and weight as a dict of targets."""
    d = _data()

    def loss(output: dict[str, Tensor], target: dict[str, Tensor]) -> Tensor:
        each = F.cross_entropy(output["logits"], target["label"], reduction="none")
        return each * target["weight"] + output["hidden"].square().sum(1)

    data = (d["ids"], d["mask"]), {"label": d["y"], "weight": 1 + d["image"][:, 0, 0].abs()}
    return _made(Text, data, data, loss=loss, **settings)


def _made(
    model: Any, data: Any, test: Any, loss: Any = "cross_entropy", **settings: Any
) -> fl.Task:
    settings = {"dtype": torch.float64, "l2": 0.01, **settings}
    return fl.Task(model, loss, data, OWNERS, test=test, **settings)


TASKS = {"named": _named, "nested": _nested, "targets": _targets}
SETTINGS: dict[str, Any] = {"rounds": 3, "cohort": 3, "batch_size": 4, "epochs": 2, "seed": 5}
METHOD = fl.Scaffold(lr=0.2)


@pytest.fixture(scope="module")
def expected() -> dict[str, fl.Run]:
    return {
        name: fl.train(make(), METHOD, engine="debug", **SETTINGS) for name, make in TASKS.items()
    }


def _same(run: fl.Run, other: fl.Run) -> None:
    torch.testing.assert_close(run.x.cpu(), other.x, rtol=0, atol=1e-11)
    for name in ("loss", "test_loss"):
        assert run.history.last(name) == pytest.approx(other.history.last(name), abs=1e-12)


ENGINES = {
    "vmap": "vmap",
    "loop": "loop",
    "auto": "auto",
    "chunks": fl.Simulate("vmap", memory=1),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TASKS)
def test_engines_agree(name: str, engine: str, expected: dict[str, fl.Run]) -> None:
    _same(fl.train(TASKS[name](), METHOD, engine=ENGINES[engine], **SETTINGS), expected[name])


@pytest.mark.parametrize("engine", ["vmap", "loop"])
@pytest.mark.parametrize("name", TASKS)
def test_recorded_gradients_agree(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one_width = {"rounds": 2, "cohort": 3, "batch_size": 1, "steps": 3}
    expected = fl.train(TASKS[name](), METHOD, engine="debug", **one_width)
    monkeypatch.setattr(autotune, "FEW_CALLS", 0)
    monkeypatch.setattr(task_module, "is_capturable", lambda model: True)
    run = fl.train(TASKS[name](record=True), METHOD, engine=engine, **one_width)
    assert run.session.gradients.captured
    _same(run, expected)


@pytest.mark.parametrize("name", TASKS)
def test_captured_rounds_agree(
    name: str, device: str, expected: dict[str, fl.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(perform: Callable[[], None], pool: Any = None) -> Callable[[], None]:
        perform()
        return perform

    if device == "cpu":  # programs are run again in the place of graphs
        monkeypatch.setattr(cuda_graph, "captures", lambda place: True)
        monkeypatch.setattr(cuda_graph, "record", again)
    engine = fl.Simulate("vmap", capture=True)
    run = fl.train(TASKS[name](device=device), METHOD, engine=engine, **SETTINGS)
    assert "captured as" in run.engine
    _same(run, expected[name])


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")
@pytest.mark.parametrize("data", ["replicate", "shard"])
def test_processes_agree(data: Any, expected: dict[str, fl.Run]) -> None:
    engine = fl.Distributed("loop", data=data)
    _same(fl.train(_nested(), METHOD, engine=engine, workers=2, **SETTINGS), expected["nested"])


def test_data_on_the_host_agree(expected: dict[str, fl.Run]) -> None:
    _same(fl.train(_named(keep="host"), METHOD, engine="vmap", **SETTINGS), expected["named"])


def test_runs_trained_together_agree() -> None:
    task, runs = _nested(), [(METHOD, 0), (METHOD, 1)]
    settings = {**SETTINGS, "cohort": None}
    del settings["seed"]
    many = fl.train_many(task, runs, together=True, engine="vmap", **settings)
    for (method, seed), run in zip(runs, many, strict=True):
        _same(run, fl.train(task, method, seed=seed, engine="debug", **settings))


def test_validation_data_have_all_inputs() -> None:
    task = _named(valid=0.2)
    assert task.valid is not None
    assert len(task.valid) == 3
    found = fl.train(task, METHOD, **SETTINGS).history
    assert 0 < found.last("valid_loss") < 10
    assert 0 <= found.last("valid_accuracy") <= 1


def test_a_step_is_the_one_computed_by_hand() -> None:
    task, d = _named(l2=0.0), _data()
    model = Text().double()
    x, _ = task.start(0)
    model.load_state_dict(task.state_dict(x))
    each = []
    for rows in OWNERS:
        logits = model(d["ids"][rows], d["mask"][rows])["logits"]
        loss = F.cross_entropy(logits, d["y"][rows])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        each.append(torch.cat([g.reshape(-1) for g in grads]))
    run = fl.train(task, fl.FedAvg(lr=0.5), rounds=1, steps=1)
    torch.testing.assert_close(run.x, x - 0.5 * torch.stack(each).mean(0), rtol=0, atol=1e-14)


def test_padding_does_not_matter_to_a_model_that_looks_at_the_mask() -> None:
    d, more = _data(), torch.full((N, 3), 7)
    longer = {
        "input_ids": torch.cat([d["ids"], more], 1),
        "attention_mask": torch.cat([d["mask"], 0 * more], 1),
    }
    task = _made(Text, (longer, d["y"]), None)
    x, _ = task.start(0)
    torch.testing.assert_close(task.objective(x), _named().objective(x), rtol=0, atol=1e-14)


def test_saddle_problems_take_several_inputs() -> None:
    task = fl.problems.agnostic(_named())
    runs = [
        fl.train(task, fl.MirrorDescent(lr=0.1), rounds=2, steps=1, engine=e)
        for e in ("vmap", "debug")
    ]
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=0, atol=1e-12)
    d = _data()
    score = lambda: nn.Bilinear(4, 4, 1)  # noqa: E731
    pair = d["image"][:, 0], d["image"][:, 1]
    plain = fl.Task(score, "logistic", (pair, 2.0 * (d["y"] > 0) - 1), OWNERS, dtype=torch.float64)
    auc = fl.problems.auc_maximization(plain)
    assert torch.isfinite(auc.objective(auc.start()[0]))


def test_named_metrics_and_metrics_of_ones_own_see_the_output() -> None:
    def spread(output: dict[str, Tensor], target: Tensor) -> Tensor:
        return output["hidden"].std()

    task = _named(metrics={"accuracy": fl.losses.correct, "std": fl.Whole(spread, better="lower")})
    model = Text().double()
    x, _ = task.start(0)
    model.load_state_dict(task.state_dict(x))
    d = _data()
    with torch.no_grad():
        out = model(d["ids"], d["mask"])
    found = task.evaluate(x)
    assert found["std"] == pytest.approx(float(out["hidden"].std()))
    right = (out["logits"].argmax(1) == d["y"]).double().mean()
    assert found["accuracy"] == pytest.approx(float(right))


def test_half_precision_casts_what_is_in_a_dict() -> None:
    task = _named(dtype=torch.float32)
    run = fl.train(task, METHOD, engine=fl.Simulate("vmap", precision="bfloat16"), **SETTINGS)
    assert torch.isfinite(run.x).all()


@pytest.mark.parametrize(
    ("data", "test", "message"),
    [
        ((["ids", "mask"], "y"), None, "a list of tensors: give several inputs as a tuple or dict"),
        (({"input_ids": "ids"}, "y"), None, "do not fit samples of shapes"),
        ((("ids", "mask"), "y"), ({"ids": "ids", "mask": "mask"}, "y"), "under the same names"),
        ((("ids", "mask"), "y"), ("ids", "y"), "under the same names"),
        ((("ids", "mask"), "y"), (("ids", "mask"), "y", "y"), "under the same names"),
    ],
)
def test_what_does_not_fit_is_refused(data: Any, test: Any, message: str) -> None:
    d = _data()

    def filled(tree: Any) -> Any:
        if isinstance(tree, list):
            return [d[name] for name in tree]
        if isinstance(tree, dict):
            return {key: d[name] for key, name in tree.items()}
        return tuple(map(filled, tree)) if isinstance(tree, tuple) else tree and d[tree]

    with pytest.raises(fl.FairleadError, match=message):
        _made(Text, filled(data), filled(test))


def test_outputs_that_the_named_losses_cannot_read_are_refused() -> None:
    class Wrong(Text):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
            out = super().forward(input_ids, attention_mask)
            return {"hidden": out["hidden"], "scores": out["logits"]}

    d = _data()
    for loss in ("cross_entropy", nn.CrossEntropyLoss()):
        with pytest.raises(
            fl.FairleadError, match="a dict with hidden, scores: name what the loss"
        ):
            _made(Wrong, ((d["ids"], d["mask"]), d["y"]), None, loss=loss)


def test_names_of_inputs_belong_to_what_a_task_is() -> None:
    d = _data()
    pair = d["image"][:, 0], d["image"][:, 1]
    one, two = (
        fl.Task(nn.Bilinear(4, 4, CLASSES), "cross_entropy", (inputs, d["y"]), OWNERS)
        for inputs in (
            {"input1": pair[0], "input2": pair[1]},
            {"input2": pair[0], "input1": pair[1]},
        )
    )
    assert one.fingerprint() != two.fingerprint()


def test_arrangements_keep_order_and_names() -> None:
    arrangement, arrays = Arrangement.of(((1, {"a": 2, "b": (3, 4)}), 5, 6))
    assert arrays == (1, 2, 3, 4, 5, 6)
    assert arrangement.count == 4
    assert arrangement.arguments(arrays) == ((1, {"a": 2, "b": (3, 4)}), {})
    assert arrangement.of_loss(arrays) == (5, 6)
    assert arrangement.arrays(((1, {"b": (3, 4), "a": 2}), 5, 6)) == arrays
