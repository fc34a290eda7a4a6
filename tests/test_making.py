"""Bring your own: arrays, datasets and tables become tasks that train."""

from __future__ import annotations

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
    with pytest.raises(fl.FairleadError, match="two classes, not 3"):
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
    with pytest.raises(fl.FairleadError, match="a share between 0 and 1"):
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
    with pytest.raises(fl.FairleadError, match="leave client out"):
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
        ("town,sick\nlyon,no\nbern,yes\n", "no column left"),
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
