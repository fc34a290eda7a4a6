"""The training loop: recording, stopping, refusing, diverging."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from conftest import toy, uneven

import fairlead as fl


def test_history_has_a_row_an_evaluation() -> None:
    run = fl.train(uneven(), fl.FedAvg(lr=0.1), rounds=7, eval_every=3)
    assert run.history["round"].tolist() == [0, 3, 6, 7]
    assert {"loss", "test_loss", "accuracy", "clients", "gradients", "exchanges", "seconds"} <= set(
        run.history
    )
    assert run.rounds == 7
    assert run.stopped == "rounds"
    assert (np.diff(run.history["seconds"]) > 0).all()


def test_a_target_stops_the_run_at_its_round() -> None:
    run = fl.train(toy(), fl.Scaffold(lr=0.05), rounds=50, steps=5, target={"distance": 1e-3})
    assert run.stopped == "target"
    assert run.rounds == run.rounds_to("distance", 1e-3) == run.history["round"][-1] < 50
    assert run.history["distance"][-2] > 1e-3 >= run.history["distance"][-1]
    full = fl.train(toy(), fl.Scaffold(lr=0.05), rounds=run.rounds, steps=5)
    assert torch.equal(run.x, full.x)


def test_a_target_met_at_the_start_takes_no_round() -> None:
    run = fl.train(toy(), fl.FedAvg(lr=0.05), rounds=5, target={"distance": 1e9})
    assert (run.stopped, run.rounds) == ("target", 0)


def test_divergence_names_the_round_and_keeps_what_was_recorded() -> None:
    run = fl.train(toy(start=1.0), fl.FedAvg(lr=1e30), rounds=50, steps=5)
    assert run.stopped == "diverged"
    assert run.error is not None
    assert f"diverged in round {run.rounds}" in str(run.error)
    assert len(run.history["round"]) == run.rounds + 1
    assert bool(torch.isfinite(run.x).all())
    with pytest.raises(fl.Diverged):
        run.raise_if_diverged()


def test_divergence_between_evaluations_is_seen() -> None:
    run = fl.train(toy(start=1.0), fl.FedAvg(lr=1e30), rounds=50, steps=5, eval_every=50)
    assert run.stopped == "diverged"
    assert run.rounds < 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"eval_every": 0}, "eval_every is 0"),
        ({"target": {"acuracy": 0.5}}, "did you mean 'accuracy'"),
        ({"weighting": "sizes"}, "did you mean 'size'"),
        ({"weighting": [1.0, 2.0]}, "5 positive numbers"),
        ({"algorithm": fl.FedAvg(lr=-0.1)}, "lr is -0.1"),
        ({"algorithm": fl.FedAvg(lr=float("nan"))}, "lr is nan"),
        ({"algorithm": fl.FedAvg(lr=0.1, server_lr=0.0)}, "server_lr is 0.0"),
        ({"algorithm": fl.FedAvg(lr=fl.schedules.Cosine(0.1, 3)), "rounds": 5}, "at k = 3"),
        ({"algorithm": fl.FedAvg(lr=lambda k: 1.0 - k), "rounds": 5}, "at k = 1"),
        ({"algorithm": fl.FedAvg}, "pass an object such as"),
        ({"algorithm": fl.FedAvg(lr="0.1")}, "lr is '0.1'"),
        (
            {"algorithm": fl.Scaffold(lr=fl.schedules.Exponential(0.1, 0.5)), "rounds": 150},
            "at k = ",
        ),
        ({"rounds": 2.0}, "rounds is 2.0"),
        ({"epochs": 1.5}, "epochs is 1.5"),
        ({"steps": 2.7}, "steps is 2.7"),
        ({"batches": fl.Batches(2), "steps": 50}, "epochs are both given: keep one"),
        ({"cohort": [0, 1]}, "one list of client ids"),
    ],
)
def test_bad_settings_are_one_sentence_before_training(change: dict, message: str) -> None:
    given = {"task": uneven(), "algorithm": fl.FedAvg(lr=0.1), "rounds": 2, **change}
    with pytest.raises(fl.FairleadError, match=message) as caught:
        fl.train(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (fl.schedules.Constant(0.1), [0.1, 0.1, 0.1, 0.1]),
        (fl.schedules.Exponential(0.1, 0.99), [0.1, 0.099, 0.09801, 0.0970299]),
        (fl.schedules.Cosine(0.2, 4), [0.2, 0.1 + 0.1 * 0.5**0.5, 0.1, 0.1 - 0.1 * 0.5**0.5]),
        (fl.schedules.MultiStep(1.0, (1, 3)), [1.0, 0.1, 0.1, 0.01]),
        (fl.schedules.InverseSqrt(1.0), [1.0, 2**-0.5, 3**-0.5, 0.5]),
        (lambda k: 1 / (k + 1), [1.0, 1 / 2, 1 / 3, 1 / 4]),
    ],
)
def test_schedules_and_the_steps_they_make(schedule, values: list[float]) -> None:
    assert [schedule(k) for k in range(4)] == pytest.approx(values)
    task = fl.problems.quadratics([[[0.0]]], [[1.0]], [0.0])  # the gradient is −1 everywhere
    run = fl.train(task, fl.FedAvg(lr=schedule), rounds=4, steps=3)
    assert run.x.item() == pytest.approx(3 * sum(values))


def test_schedules_over_steps_count_the_longest_client() -> None:
    task = fl.problems.quadratics([[[0.0]]] * 2, [[1.0], [0.0]], [0.0])
    rate = fl.schedules.Exponential(1.0, 0.5, per="step")
    run = fl.train(task, fl.FedAvg(lr=rate), rounds=2, steps=[1, 3])
    # client 0 moves by 1 in round 0 (step 0) and by ½³ in round 1 (step 3); client 1 stays
    assert run.x.item() == (1 + 0.125) / 2


def test_history_survives_a_file(tmp_path) -> None:
    run = fl.train(toy(start=1.0), fl.FedAvg(lr=1e30), rounds=50, steps=5)
    run.history.to_jsonl(tmp_path / "h.jsonl")
    back = fl.History.from_jsonl(tmp_path / "h.jsonl")
    for name in run.history:
        values = np.where(np.isfinite(run.history[name]), run.history[name], np.nan)
        np.testing.assert_array_equal(back[name], values)
    for line in (tmp_path / "h.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))


def test_import_and_training_need_torch_numpy_and_safetensors_only() -> None:
    code = """
import sys
for name in ("typer", "rich", "matplotlib", "sklearn", "scipy", "pandas"):
    sys.modules[name] = None  # importing it fails from now on
import fairlead as fl
run = fl.train(fl.problems.theorem2(), fl.Scaffold(lr=0.1), rounds=3, steps=2, progress=True)
print(run.rounds)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "3", done.stderr


def test_resuming_checks_what_it_goes_on_from() -> None:
    run = fl.train(uneven(), fl.FedAvg(lr=0.1), rounds=3, eval_every=2)
    for change, match in (
        ({"algorithm": fl.FedSGD(lr=0.1)}, "method was"),
        ({"algorithm": fl.FedAvg(lr=0.2)}, r"method was lr = 0\.1, now it is lr = 0\.2"),
        ({"seed": 1}, "seed was 0, now it is 1"),
        ({"cohort": 2}, "cohort"),
        ({"steps": 3}, r"batches was steps = None, now it is steps = 3"),
        ({"weighting": "size"}, "weights"),
        ({"dropout": 0.1}, "dropout"),
    ):
        given = {"task": uneven(), "algorithm": fl.FedAvg(lr=0.1), "rounds": 5, **change}
        with pytest.raises(fl.FairleadError, match=match):
            fl.train(**given, resume=run)
    other = uneven().replace(l2=0.5)
    with pytest.raises(fl.FairleadError, match=r"with other settings: l2 was"):
        fl.train(other, fl.FedAvg(lr=0.1), rounds=5, resume=run)
    with pytest.raises(fl.FairleadError, match="set rounds higher"):
        fl.train(uneven(), fl.FedAvg(lr=0.1), rounds=3, resume=run)
    rest = fl.train(uneven(), fl.FedAvg(lr=0.1), rounds=6, eval_every=2, resume=run)
    assert rest.history["round"].tolist() == [0, 2, 4, 6]


def test_schedules_are_compared_by_what_they_compute(tmp_path) -> None:
    def train(lr, rounds: int, **more) -> fl.Run:
        return fl.train(uneven(), fl.FedAvg(lr=lr), rounds=rounds, batch_size=4, **more)

    half = train(lambda k: 0.1 / (k + 1), 2, checkpoints=tmp_path)
    for resume in (half, tmp_path):
        with pytest.raises(fl.FairleadError, match=r"method was lr = .*<lambda>"):
            train(lambda k: 0.2 / (k + 1), 4, resume=resume)
        rest = train(lambda k: 0.1 / (k + 1), 4, resume=resume)
        assert torch.equal(rest.x, train(lambda k: 0.1 / (k + 1), 4).x)

    def scaled(factor: float):
        return lambda k: factor / (k + 1)

    with pytest.raises(fl.FairleadError, match="other settings"):  # by what they close over
        train(scaled(0.2), 4, resume=train(scaled(0.1), 2))


def test_resuming_with_dropout_layers_ends_in_the_same_bytes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.Dropout(0.5), torch.nn.Linear(9, 3))
    data = uneven()
    task = fl.Task(model, "cross_entropy", data.data, data.split, dtype=torch.float64)
    settings = {"batch_size": 4, "engine": "loop"}
    whole = fl.train(task, fl.FedAvg(lr=0.1), rounds=4, **settings)
    part = fl.train(task, fl.FedAvg(lr=0.1), rounds=2, **settings)
    assert torch.equal(
        fl.train(task, fl.FedAvg(lr=0.1), rounds=4, resume=part, **settings).x, whole.x
    )


def test_schedules_over_steps_are_checked_over_all_steps_of_the_run() -> None:
    rate = fl.schedules.Cosine(0.01, total=6, per="step")
    table = {(k, i): [[0]] * 5 for k in range(6) for i in range(5)}
    for work in ({"batches": table}, {"steps": fl.Geometric(0.05), "seed": 3}):
        with pytest.raises(fl.FairleadError, match="at k = 6"):
            fl.train(uneven(), fl.Scaffold(lr=rate), rounds=6, **work)


def test_a_second_thread_is_refused() -> None:
    task = fl.problems.theorem2(gradient=10)
    found: list[BaseException] = []

    class Meanwhile(fl.Callback):
        def round(self, view: object) -> None:
            def train() -> None:
                try:
                    fl.train(task, fl.FedAvg(lr=0.1), rounds=1)
                except fl.FairleadError as error:
                    found.append(error)

            thread = threading.Thread(target=train)
            thread.start()
            thread.join()
            fl.train(task, fl.FedAvg(lr=0.1), rounds=1)  # one inside another is fine

    fl.train(task, fl.FedAvg(lr=0.1), rounds=2, callbacks=[Meanwhile()])
    assert len(found) == 2
    assert "another thread of this process is training" in str(found[0])
    fl.train(task, fl.FedAvg(lr=0.1), rounds=1)


def test_numbers_of_numpy_are_numbers() -> None:
    task = fl.problems.theorem2(gradient=10)
    run = fl.train(
        task, fl.FedAvg(lr=0.1), rounds=np.int64(3), seed=np.int64(1), eval_every=np.int64(2)
    )
    other = fl.train(task, fl.FedAvg(lr=0.1), rounds=3, seed=1, eval_every=2)
    assert torch.equal(run.x, other.x)
    assert run.rounds == 3


def _network(model: torch.nn.Module) -> fl.Task:
    torch.manual_seed(0)
    x, y = torch.randn(24, 4), torch.randint(3, (24,))
    return fl.Task(model, "cross_entropy", (x, y), [range(12), range(12, 24)])


class _Unused(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_parameters_that_the_loss_does_not_use_stay_as_they_are() -> None:
    task = _network(_Unused())
    runs = [
        fl.train(task, fl.Scaffold(lr=0.1), rounds=3, steps=2, batch_size=4, engine=engine)
        for engine in ("vmap", "loop", "debug")
    ]
    idle = task.layers["idle.weight"]
    for run in runs:
        torch.testing.assert_close(run.x, runs[0].x)
        assert torch.equal(run.x[idle], task.start(0)[0][idle])


class _Drawing(torch.nn.Module):
    """Draws without a layer that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.nn.functional.dropout(x, 0.5, self.training))


def test_any_draw_is_noticed() -> None:
    assert _network(_Drawing()).draws_masks
    assert _network(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.RReLU())).draws_masks
    assert not _network(torch.nn.Linear(4, 3)).draws_masks
    assert _network(_Drawing()).to(dtype=torch.float64).draws_masks


def test_models_with_hooks_are_run_as_they_are() -> None:
    calls: list[int] = []
    model = torch.nn.Linear(4, 3)
    task = _network(model)
    assert task.capturable
    model.register_forward_hook(lambda *_: calls.append(1))
    hooked = _network(model)
    assert not hooked.capturable
    calls.clear()
    settings = {"rounds": 40, "steps": 10, "batch_size": 4, "eval_every": 40, "objective": False}
    runs = {}
    for engine in ("loop", "auto", "vmap"):
        calls.clear()
        runs[engine] = fl.train(hooked, fl.FedAvg(lr=0.1), engine=engine, **settings)
        assert len(calls) >= (1 if engine == "vmap" else 2) * 40 * 10  # two clients
    assert runs["auto"].engine == "loop: the model's hooks are called for each client"
    assert runs["vmap"].engine.endswith("; the model's hooks are called once for all clients")
