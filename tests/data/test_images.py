"""Images on the device: bytes, normalised and augmented a step; data that stay in files."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn

import fairlead as fl
from fairlead.engine.clients import LOADER
from fairlead.gradients.oracle import Gradients
from fairlead.rng import Purpose, words


def _bytes(n: int = 24, shape: tuple[int, ...] = (3, 8, 6)) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(0).integers(0, 256, (n, *shape)), dtype=torch.uint8)


def _task(transform: fl.Images, device: str = "cpu", dtype=torch.float64, **settings) -> fl.Task:
    x = settings.pop("x", _bytes())
    y = torch.tensor(np.random.default_rng(1).integers(0, 4, len(x)))
    model = fl.models.mlp(144, 4)
    owners = [range(9), range(9, 13), range(13, 24)]
    return fl.Task(
        model, "cross_entropy", (x, y), owners, test=(x, y), transform=transform,
        dtype=dtype, device=device, **settings,
    )  # fmt: skip


def _keys(clients: int, step: int = 0, device: str = "cpu") -> torch.Tensor:
    ids = torch.arange(clients, device=device)
    return words(5, Purpose.AUGMENT, 2, ids, step, 0)[:, :2]


def test_every_image_is_a_crop_and_maybe_a_flip_of_itself(device: str) -> None:
    x = _bytes(40).view(2, 20, 3, 8, 6).to(device)
    found = fl.Images([0.0] * 3, [1.0] * 3, flip=True, crop=2).augmented(x, _keys(2, device=device))
    seen = set()
    for s in range(2):
        for b in range(20):
            padded = nn.functional.pad(x[s, b], (2, 2, 2, 2))
            forms = {
                (down, right, turn): (padded.flip(-1) if turn else padded)[:, down : down + 8, right : right + 6]
                for down in range(5) for right in range(5) for turn in (False, True)
            }  # fmt: skip
            hits = [form for form, image in forms.items() if torch.equal(image, found[s, b])]
            assert hits, "no crop and flip of the image gives it"
            seen.update(hits)
    assert {turn for *_, turn in seen} == {False, True}
    assert {down for down, *_ in seen} == set(range(5)) == {right for _, right, _ in seen}


def test_choices_do_not_depend_on_company_or_device(device: str) -> None:
    transform = fl.Images([0.0] * 3, [1.0] * 3, flip=True, crop=3)
    x, keys = _bytes(12).view(3, 4, 3, 8, 6), _keys(3)
    together = transform.augmented(x, keys)
    for k in range(3):
        alone = transform.augmented(x[k : k + 1, :2].to(device), keys[k : k + 1].to(device))
        assert torch.equal(alone[0].cpu(), together[k, :2])
    assert not torch.equal(together, transform.augmented(x, _keys(3, step=1)))


def test_normalisation_by_channel() -> None:
    x = _bytes(50)
    transform = fl.Images.of(x)
    found = transform(x, torch.float64)
    assert found.transpose(0, 1).flatten(1).mean(1).abs().max() < 1e-12
    torch.testing.assert_close(found.transpose(0, 1).flatten(1).std(1), torch.ones(3).double())
    with pytest.raises(fl.FairleadError, match="images have 3 channels"):
        fl.Images([0.5], [0.5])(x, torch.float32)
    with pytest.raises(fl.FairleadError, match="one number per channel"):
        fl.Images([0.5], [0.0])


@pytest.mark.parametrize("method", [fl.Scaffold(lr=0.1), fl.FedGLOMO(lr=0.1, first_batch=5)])
def test_augmented_runs_agree_across_engines(method: fl.Algorithm) -> None:
    task = _task(fl.Images([0.5] * 3, [0.3] * 3, flip=True, crop=2))
    runs = [fl.train(task, method, rounds=4, batch_size=4, cohort=2, engine=e).x
            for e in ("vmap", "loop", "debug")]  # fmt: skip
    for other in runs[1:]:
        torch.testing.assert_close(runs[0], other, rtol=0, atol=1e-12)
    plain = fl.train(
        _task(fl.Images([0.5] * 3, [0.3] * 3)), method, rounds=4, batch_size=4, cohort=2
    )
    assert float((plain.x - runs[0]).abs().max()) > 1e-4


def test_evaluation_and_full_gradients_see_plain_images() -> None:
    transform = fl.Images([0.5] * 3, [0.3] * 3, flip=True, crop=2)
    task, plain = _task(transform), _task(fl.Images([0.5] * 3, [0.3] * 3))
    x = task.start(0)[0]
    assert task.evaluate(x) == plain.evaluate(x)
    g = [
        Gradients(t).full_stacked(np.arange(3), x, x.new_zeros(3, 0), 100)[0] for t in (task, plain)
    ]
    assert torch.equal(*g)
    numbers = fl.Task(
        task.model, "cross_entropy", (transform(_bytes(), torch.float64), task.data[1]), task.split,
        dtype=torch.float64,
    )  # fmt: skip
    expected = Gradients(numbers).full_stacked(np.arange(3), x, x.new_zeros(3, 0), 100)[0]
    torch.testing.assert_close(g[0], expected, rtol=0, atol=1e-14)


def test_images_stay_bytes_on_the_device(device: str) -> None:
    task = _task(fl.Images([0.5] * 3, [0.3] * 3, flip=True, crop=2), device, torch.float32)
    assert task.data[0].dtype == torch.uint8
    assert task.data[0].device.type == device
    engine = fl.Simulate("vmap", capture=False)  # the same kernels for both
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=2, batch_size=5, engine=engine)
    assert np.isfinite(run.history.last("loss"))
    host = fl.train(
        _task(fl.Images([0.5] * 3, [0.3] * 3, flip=True, crop=2), device, torch.float32, keep="host"),
        fl.FedAvg(lr=0.1), rounds=2, batch_size=5, engine=engine,
    )  # fmt: skip
    assert host.task.data[0].device.type == "cpu"
    assert torch.equal(host.x, run.x)


def test_mapped_files_give_the_same_run_as_memory(tmp_path) -> None:
    np.save(tmp_path / "x.npy", _bytes().numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    transform = fl.Images([0.5] * 3, [0.3] * 3, flip=True, crop=2)
    method = fl.Scaffold(lr=0.1)
    runs = [fl.train(_task(transform, x=x), method, rounds=4, batch_size=4, epochs=2, engine=e)
            for x in (_bytes(), mapped) for e in ("vmap", "loop")]  # fmt: skip
    assert runs[2].task.mapped
    assert runs[2].task.ahead
    assert torch.equal(runs[0].x, runs[2].x)
    assert torch.equal(runs[1].x, runs[3].x)
    assert runs[0].history.last("loss") == runs[2].history.last("loss")


def test_mapped_numbers_are_cast_when_they_are_used(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(24, 144)).astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    y, model = torch.arange(24) % 4, fl.models.mlp(144, 4)
    tasks = [fl.Task(model, "cross_entropy", (x, y), [range(24)], dtype=torch.float64)
             for x in (mapped, np.array(mapped))]  # fmt: skip
    assert [task.data[0].dtype for task in tasks] == [torch.float32, torch.float64]
    runs = [fl.train(task, fl.FedAvg(lr=0.1), rounds=2, batch_size=7) for task in tasks]
    assert runs[0].x.dtype == torch.float64
    assert torch.equal(runs[0].x, runs[1].x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.rand(4, 3, 8, 6), "give uint8 images"),
        (_bytes(4).flatten(1), "as \\(N, C, H, W\\)"),
    ],
)
def test_only_bytes_of_three_or_four_axes_are_images(x: torch.Tensor, message: str) -> None:
    with pytest.raises(fl.FairleadError, match=message):
        fl.Images.of(x)
    with pytest.raises(fl.FairleadError, match=message):
        fl.Task(
            fl.models.mlp(x[0].numel(), 2), "cross_entropy", (x, torch.zeros(4, dtype=torch.int64)),
            [range(4)], transform=fl.Images([0.5] * 3, [0.5] * 3),
        )  # fmt: skip


def test_bytes_without_a_transform_say_what_to_give() -> None:
    data = (_bytes(4), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(fl.FairleadError, match=r"give transform=fl\.Images\.of"):
        fl.Task(fl.models.mlp(144, 2), "cross_entropy", data, [range(4)])
    for wrong in ({"mean": 0.5}, {"mean": []}, {"crop": 1.5}):
        with pytest.raises(fl.FairleadError, match="one number per channel"):
            fl.Images(**wrong)


def test_games_over_mapped_files_leave_them_where_they_are(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    y = torch.where(torch.arange(24) % 3 == 0, 1.0, -1.0)
    base = fl.Task(
        nn.Linear(3, 1), "logistic", (mapped, y), [range(9), range(9, 24)], dtype=torch.float64
    )
    for task in (fl.problems.auc_maximization(base), fl.problems.agnostic(base)):
        assert task.data[0].dtype == torch.float32
        assert task.data[0].data_ptr() == base.data[0].data_ptr()
        run = fl.train(task, fl.MirrorProx(lr=0.01), rounds=2, steps=2, batch_size=4)
        assert np.isfinite(run.history.last("loss"))


def _train_mapped(folder: str) -> None:
    mapped = np.load(f"{folder}/x.npy", mmap_mode="r")
    fl.train(
        _task(fl.Images([0.5] * 3, [0.3] * 3), x=mapped),
        fl.FedAvg(lr=0.1),
        rounds=2,
        steps=3,
        batch_size=4,
    )


def test_a_process_that_has_not_its_parents_thread_starts_one(tmp_path) -> None:
    np.save(tmp_path / "x.npy", _bytes().numpy())
    _train_mapped(str(tmp_path))
    assert LOADER.pool is not None
    LOADER.process = -1  # as it is in a child: the thread belongs to another process
    _train_mapped(str(tmp_path))
    assert LOADER.process == os.getpid()
