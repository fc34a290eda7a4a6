"""Bring your own: arrays, datasets and tables become tasks that train."""

from __future__ import annotations

import inspect
from decimal import Decimal

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fairlead as fl

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
WHO = np.repeat(["lyon", "bern", "oslo"], [14, 6, 10])


def _losses(task: fl.Task) -> np.ndarray:
    run = fl.train(task, fl.Scaffold(lr=0.3), rounds=5, batch_size=4)
    assert run.history.last("loss") < run.history["loss"][0]
    return run.history["loss"]


def test_clients_come_from_ids_in_their_order() -> None:
    task = fl.Task.from_arrays(X, Y, client=WHO)
    assert task.sizes.tolist() == [6, 14, 10]  # bern, lyon, oslo
    assert task.dim == 10
    _losses(task)


def test_ids_and_index_lists_are_the_same_task() -> None:
    lists = [np.flatnonzero(name == WHO) for name in ("bern", "lyon", "oslo")]
    one, two = fl.Task.from_arrays(X, Y, client=WHO), fl.Task.from_arrays(X, Y, clients=lists)
    np.testing.assert_array_equal(_losses(one), _losses(two))


def test_targets_decide_the_loss() -> None:
    words = fl.Task.from_arrays(X, np.array(["no", "yes"])[Y], client=WHO)
    assert words.data[1].tolist() == Y.tolist()
    assert "accuracy" in words.metrics
    numbers = fl.Task.from_arrays(X, X @ np.ones(4, dtype=np.float32), client=WHO)
    assert numbers.dim == 5
    _losses(numbers)
    signs = fl.Task.from_arrays(X, Y, client=WHO, loss="logistic", model=fl.models.mlp(4, 1))
    assert set(signs.data[1].tolist()) == {-1.0, 1.0}
    with pytest.raises(
        fl.FairleadError, match="there are 3 classes: the logistic loss needs exactly 2"
    ):
        fl.Task.from_arrays(X, np.arange(30) % 3, client=WHO, loss="logistic")


def test_a_share_of_every_client_is_held_out() -> None:
    task = fl.Task.from_arrays(X, Y, client=WHO, hold_out=0.3, seed=1)
    assert task.sizes.tolist() == [4, 10, 7]  # of 6, 14 and 10, less 2, 4 and 3
    assert task.test is not None
    together = torch.cat([task.data[0][task.order], task.test[0]])
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, X.tolist()))
    assert 0 <= fl.train(task, fl.FedAvg(lr=0.1), rounds=1).history.last("accuracy") <= 1
    other = fl.Task.from_arrays(X, Y, client=WHO, hold_out=0.3, seed=2)
    assert not torch.equal(other.test[0], task.test[0])
    tiny = fl.Task.from_arrays(X[:3], Y[:3], client=[0, 0, 1], hold_out=0.99)
    assert tiny.sizes.tolist() == [1, 1]  # nobody is left with nothing
    with pytest.raises(fl.FairleadError, match=r"must be in \(0, 1\)"):
        fl.Task.from_arrays(X, Y, client=WHO, hold_out=1.5)


def test_whose_the_samples_are_must_be_said_once() -> None:
    for wrong in ({}, {"client": WHO, "clients": [range(30)]}):
        with pytest.raises(fl.FairleadError, match="either client or clients"):
            fl.Task.from_arrays(X, Y, **wrong)


def test_torch_datasets_one_or_one_a_client() -> None:
    tensors = torch.tensor(X), torch.tensor(Y)
    whole = fl.Task.from_torch_dataset(TensorDataset(*tensors), client=WHO)
    parts = [TensorDataset(*(t[name == WHO] for t in tensors)) for name in ("bern", "lyon", "oslo")]
    listed = fl.Task.from_torch_dataset(parts)
    assert listed.sizes.tolist() == whole.sizes.tolist()
    np.testing.assert_allclose(_losses(whole), _losses(listed), rtol=1e-5)
    with pytest.raises(fl.FairleadError, match="omit client"):
        fl.Task.from_torch_dataset(parts, client=WHO)


def test_huggingface_datasets_with_a_client_column() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict(
        {"pixels": X.tolist(), "label": Y.tolist(), "town": WHO.tolist()}
    )
    task = fl.Task.from_huggingface(table, inputs="pixels", target="label", client="town")
    np.testing.assert_allclose(_losses(task), _losses(fl.Task.from_arrays(X, Y, client=WHO)))
    with pytest.raises(fl.FairleadError, match="no column 'city': it has pixels, label, town"):
        fl.Task.from_huggingface(table, inputs="pixels", target="label", client="city")


CSV = """town,age,colour,sick
lyon,31,red,no
bern,45,blue,yes
lyon,28,red,no
bern,61,green,yes
lyon,50,blue,yes
bern,33,red,no
"""


def test_tables_in_csv_and_parquet(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(CSV)
    task = fl.Task.from_csv(path, target="sick", client="town")
    assert task.sizes.tolist() == [3, 3]
    x = task.data[0]
    assert x.shape == (6, 4)  # age, and blue, green, red
    torch.testing.assert_close(x[:, 0].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    assert x[:, 1:].tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert task.data[1].tolist() == [0, 1, 0, 1, 1, 0]
    raw = fl.Task.from_csv(path, target="age", client="town", features=["colour"], loss="squared")
    assert raw.data[0].shape == (6, 3)
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    parquet.write_table(csv.read_csv(path), tmp_path / "t.parquet")
    same = fl.Task.from_parquet(tmp_path / "t.parquet", target="sick", client="town")
    torch.testing.assert_close(same.data[0], x)
    assert pyarrow.__version__


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("town,age,sick\nlyon,3\n", "2 cells in line 2, not 3"),
        (
            "town,age,sick\nlyon,,no\nbern,4,yes\n",
            "column age has 1 empty cells, the first in row 0",
        ),
        ("", "cannot be read as a table"),
        ("town,sick\nlyon,no\nbern,yes\n", "no column is left"),
        ("city,age,sick\nlyon,3,no\n", "there is no column 'town'"),
    ],
)
def test_tables_with_holes_are_refused(text: str, message: str, tmp_path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(fl.FairleadError, match=message):
        fl.Task.from_csv(tmp_path / "t.csv", target="sick", client="town")


def test_broken_parquet_is_a_sentence(tmp_path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(fl.FairleadError, match="cannot be read as a Parquet file"):
        fl.Task.from_parquet(tmp_path / "t.parquet", target="sick", client="town")


def test_test_labels_are_coded_like_training_labels() -> None:
    y = np.array([0, 2, 3])[Y + (X[:, 1] > 0)]
    task = fl.Task.from_arrays(X, y, client=WHO, test=(X, y))
    assert torch.equal(task.data[1], task.test[1])
    assert task.label_names == ["0", "2", "3"]
    kept = fl.Task.from_arrays(X, y, client=WHO, test=(X, y), model=fl.models.mlp(4, 5))
    assert kept.data[1].tolist() == y.tolist() == kept.test[1].tolist()
    with pytest.raises(fl.FairleadError, match="the label 8 is in the test data"):
        fl.Task.from_arrays(X, y, client=WHO, test=(X, y + 6))


def test_a_loss_of_ones_own_gets_the_numbers_as_they_are() -> None:
    task = fl.Task.from_arrays(X, 10 * Y + 5, client=WHO, loss=lambda o, t: (o[:, 0] - t).abs())
    assert set(task.data[1].tolist()) == {5.0, 15.0}


def test_datasets_that_draw_are_asked_once_a_sample() -> None:
    class Drawing(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
            v = torch.randn(3)
            return v, int(v[0] > 0)

    task = fl.Task.from_torch_dataset(Drawing(), client=np.arange(40) % 2)
    assert torch.equal((task.data[0][:, 0] > 0).long(), task.data[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"client": WHO[:9]}, "client has 9 entries for 30 samples"),
        ({"client": WHO, "x": X.astype(str)}, "must be numbers"),
        ({"client": WHO, "y": np.array([None] * 30)}, "one number or string per sample"),
        ({"client": WHO, "y": np.ones((30, 2))}, "one number or string per sample"),
        ({"client": WHO, "keep": "disk"}, "no place for data 'disk'"),
        ({"client": WHO, "test": (X[:, :2], Y)}, "do not fit samples of shapes"),
        ({"client": WHO, "test": (X, Y + 9), "model": fl.models.mlp(4, 2)}, "labels run from 9"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments: dict, message: str) -> None:
    given = {"x": X, "y": Y, **arguments}
    with pytest.raises(fl.FairleadError, match=message):
        fl.Task.from_arrays(given.pop("x"), given.pop("y"), **given)


def test_odd_arrays_that_do_fit() -> None:
    whole = fl.Task.from_arrays(np.arange(60).reshape(30, 2)[:, ::-1] > 20, Y > 0, client=WHO)
    assert whole.data[0].dtype == torch.float32
    short = fl.Task(fl.models.mlp(4, 2), "cross_entropy", (X, Y.astype(np.int32)), [range(30)])
    assert short.data[1].dtype == torch.int64
    logistic = fl.Task.from_arrays(X, Y > 0, client=WHO, loss="logistic")
    assert logistic.dim == 5
    lists = fl.Task.from_arrays(X, Y, clients=np.arange(30).reshape(3, 10))
    assert lists.sizes.tolist() == [10, 10, 10]


def test_datasets_that_do_not_fit_are_refused() -> None:
    empty = TensorDataset(torch.zeros(0, 4), torch.zeros(0))
    with pytest.raises(fl.FairleadError, match="one of the datasets is empty"):
        fl.Task.from_torch_dataset([empty, TensorDataset(torch.ones(2, 4), torch.ones(2))])
    with pytest.raises(fl.FairleadError, match="pairs by index"):
        fl.Task.from_torch_dataset(_Listed([{"x": 1}]), client=[0])
    ragged = [(np.zeros(3), 0), (np.zeros(4), 1)]
    with pytest.raises(fl.FairleadError, match="have one shape"):
        fl.Task.from_torch_dataset(_Listed(ragged), client=[0, 1])


class _Listed(torch.utils.data.Dataset):
    def __init__(self, samples: list) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, k: int) -> tuple:
        return self.samples[k]


def test_cells_that_look_like_numbers(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\ufeffwho,size,sick\n007,1.5,no\n07,2,yes\n7,3,no\n\n", encoding="utf-8")
    task = fl.Task.from_csv(path, target="sick", client="who")
    assert task.clients == 3
    path.write_text("who,who,sick\n1,2,no\n")
    with pytest.raises(fl.FairleadError, match="column who twice"):
        fl.Task.from_csv(path, target="sick", client="who")
    table = {"who": ["a", "b"], "cost": [Decimal("1.5"), Decimal("2")], "sick": ["no", "yes"]}
    assert fl.Task.from_table(table, target="sick", client="who", scale=False).data[0].tolist() == [
        [1.5],
        [2.0],
    ]
    days = np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[D]")
    with pytest.raises(fl.FairleadError, match="give numbers or strings"):
        fl.Task.from_table({**table, "day": days}, target="sick", client="who")


def test_constructors_return_the_class_they_are_called_on() -> None:
    class Mine(fl.Task):
        """A subclass."""

    task = Mine.from_arrays(X, Y, client=WHO)
    assert type(task) is type(task.from_arrays(X, Y, client=WHO)) is Mine
    assert list(inspect.signature(Mine.from_csv).parameters) == ["path", "settings"]
    assert "comma-separated" in str(Mine.from_csv.__doc__)
