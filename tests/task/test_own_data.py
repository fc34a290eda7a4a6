"""Bring your own data: datasets of torch and Hugging Face, images, token lists, text, and tables of several kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

import fairlead as fl
from fairlead.data.datasets import IGNORED

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
OWNERS = [range(14), range(14, 20), range(20, 30)]


class Listed(torch.utils.data.Dataset):
    """Samples in a list."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, k: int) -> Any:
        return self.samples[k]


def _x(task: fl.Task) -> Tensor:
    run = fl.train(task, fl.FedAvg(lr=0.3), rounds=2, batch_size=4)
    return run.x


# -- datasets of torch ----------------------------------------------------------------------------


def _plain() -> fl.Task:
    return fl.Task(fl.models.mlp(4, 2), "cross_entropy", (X, Y), OWNERS, test=(X, Y))


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(X, Y),
        Listed(list(zip(X, Y, strict=True))),
        Listed([(x.numpy(), int(y)) for x, y in zip(X, Y, strict=True)]),
        Listed([{"pixels": x, "label": y} for x, y in zip(X, Y, strict=True)]),
        ConcatDataset([TensorDataset(X[:9], Y[:9]), TensorDataset(X[9:], Y[9:])]),
    ],
    ids=["tensors", "pairs", "numpy", "dicts", "joined"],
)
def test_a_torch_dataset_is_data(dataset: Any) -> None:
    task = fl.Task(fl.models.mlp(4, 2), "cross_entropy", dataset, OWNERS, test=dataset)
    torch.testing.assert_close(_x(task), _x(_plain()), rtol=0, atol=0)
    assert task.evaluate(task.start()[0]) == _plain().evaluate(_plain().start()[0])


def test_one_torch_dataset_per_client_is_data_and_split() -> None:
    whole = TensorDataset(X, Y)
    tensors = [TensorDataset(X[rows], Y[rows]) for rows in map(list, OWNERS)]
    for parts in (tensors, [Subset(whole, list(rows)) for rows in OWNERS]):
        task = fl.Task(fl.models.mlp(4, 2), "cross_entropy", parts)
        assert task.sizes.tolist() == [14, 6, 10]
        torch.testing.assert_close(_x(task), _x(_plain()), rtol=0, atol=0)
    with pytest.raises(fl.FairleadError, match="already has one per client: omit clients"):
        fl.Task(fl.models.mlp(4, 2), "cross_entropy", tensors, OWNERS)


def test_datasets_with_several_inputs() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.layer(left + right)

    torch.manual_seed(0)
    model, rows = Sum(), list(zip(X, Y, strict=True))
    named = Listed([{"right": x, "left": 2 * x, "labels": y} for x, y in rows])
    nested = Listed([((2 * x, x), y) for x, y in rows])
    found = [_x(fl.Task(model, "cross_entropy", data, OWNERS)) for data in (named, nested)]
    expected = _x(fl.Task(model, "cross_entropy", ((2 * X, X), Y), OWNERS))
    for x in found:
        torch.testing.assert_close(x, expected, rtol=0, atol=0)


def test_datasets_of_strings_are_coded_by_the_constructor() -> None:
    words = Listed([(x, "yes" if y else "no") for x, y in zip(X, Y, strict=True)])
    task = fl.Task.from_torch_dataset(words, clients=OWNERS, test=words)
    assert task.label_names == ["no", "yes"]
    assert torch.equal(task.data[1], Y)
    assert torch.equal(task.test[1], Y)
    with pytest.raises(
        fl.FairleadError, match=r"the data hold strings: encode labels with Task\.from"
    ):
        fl.Task(fl.models.mlp(4, 2), "cross_entropy", words, OWNERS)
    with pytest.raises(fl.FairleadError, match="a list that is no array of numbers"):
        fl.Task(fl.models.mlp(4, 2), "cross_entropy", ([{}], Y), OWNERS)


@pytest.mark.parametrize(
    ("data", "clients", "message"),
    [
        (TensorDataset(X, Y), None, "clients is missing: give one index list per client"),
        ((X, Y), None, "clients is missing"),
        (Listed([]), OWNERS, "the dataset is empty"),
        (Listed([1, 2]), OWNERS, "must return \\(input, label\\) pairs by index"),
        (Listed([{"x": 1, "y": 2}]), OWNERS, "dicts with x, y: call the target label"),
        (X, OWNERS, "give a tuple such as \\(inputs, targets\\), or a dataset"),
    ],
)
def test_datasets_that_do_not_fit_are_refused(data: Any, clients: Any, message: str) -> None:
    with pytest.raises(fl.FairleadError, match=message):
        fl.Task(fl.models.mlp(4, 2), "cross_entropy", data, clients)


def test_streams_are_refused() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    with pytest.raises(fl.FairleadError, match="must have a length, which a Stream has not"):
        fl.Task(fl.models.mlp(4, 2), "cross_entropy", Stream(), OWNERS)


# -- images ---------------------------------------------------------------------------------------

PIXELS = torch.randint(
    0, 256, (30, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
)


def _small_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))


def test_grey_images_need_no_channel_axis() -> None:
    with_axis = PIXELS[:, None]
    expected = fl.Task(
        _small_cnn, "cross_entropy", (with_axis, Y), OWNERS, transform=fl.Images.of(with_axis)
    )
    for pixels in (PIXELS, PIXELS.numpy()):
        transform = fl.Images.of(pixels)
        assert transform == expected.transform
        task = fl.Task(
            _small_cnn, "cross_entropy", (pixels, Y), OWNERS, test=(pixels, Y), transform=transform
        )
        torch.testing.assert_close(_x(task), _x(expected), rtol=0, atol=0)


def test_datasets_of_pictures_are_normalised() -> None:
    pictures = pytest.importorskip("PIL.Image")
    grey = [pictures.fromarray(p.numpy()) for p in PIXELS]
    task = fl.Task(_small_cnn, "cross_entropy", Listed(list(zip(grey, Y, strict=True))), OWNERS)
    assert task.data[0].shape == (30, 1, 6, 6)
    assert task.transform == fl.Images.of(PIXELS[:, None])
    colour = [p.convert("RGB") for p in grey]
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 36, 2))
    task = fl.Task(model, "cross_entropy", Listed(list(zip(colour, Y, strict=True))), OWNERS)
    assert task.data[0].shape == (30, 3, 6, 6)


def test_huggingface_images() -> None:
    datasets, pictures = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    rows = {"image": [pictures.fromarray(p.numpy()) for p in PIXELS], "label": Y.tolist()}
    table = datasets.Dataset.from_dict(rows)
    task = fl.Task.from_huggingface(
        table, inputs="image", target="label", clients=OWNERS, model=_small_cnn
    )
    assert torch.equal(task.data[0], PIXELS[:, None])
    direct = fl.Task(_small_cnn, "cross_entropy", table, OWNERS)
    torch.testing.assert_close(_x(task), _x(direct), rtol=0, atol=0)
    kinds = datasets.Features(
        {"image": datasets.Array2D((6, 6), "uint8"), "label": datasets.Value("int64")}
    )
    arrays = datasets.Dataset.from_dict({**rows, "image": PIXELS.numpy()}, features=kinds)
    other = fl.Task.from_huggingface(
        arrays, inputs="image", target="label", clients=OWNERS, model=_small_cnn
    )
    torch.testing.assert_close(_x(task), _x(other), rtol=0, atol=0)


# -- Hugging Face ---------------------------------------------------------------------------------


def test_huggingface_with_a_split_of_ones_own_and_a_test_part() -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"pixels": X.tolist(), "label": Y.tolist()}
    table = datasets.Dataset.from_dict(rows)
    split = fl.splits.dirichlet(table["label"], clients=3, alpha=1.0)
    both = datasets.DatasetDict(train=table, test=table.select(range(20)))
    task = fl.Task.from_huggingface(both, inputs="pixels", target="label", clients=split)
    assert task.sizes.tolist() == split.sizes.tolist()
    torch.testing.assert_close(task.test[0], X[:20])
    apart = fl.Task.from_huggingface(
        table, inputs="pixels", target="label", clients=split, test=table.select(range(20))
    )
    torch.testing.assert_close(_x(task), _x(apart), rtol=0, atol=0)
    direct = fl.Task(fl.models.softmax_regression(4, 2), "cross_entropy", both, split)
    torch.testing.assert_close(_x(direct), _x(task), rtol=0, atol=0)
    torch.testing.assert_close(direct.test[0], X[:20])
    with pytest.raises(fl.FairleadError, match="no part 'train', only other"):
        fl.Task.from_huggingface(
            datasets.DatasetDict(other=table), inputs="pixels", target="label", clients=split
        )
    with pytest.raises(fl.FairleadError, match="either client or clients"):
        fl.Task.from_huggingface(both, inputs="pixels", target="label")


# -- token lists and text -------------------------------------------------------------------------

TOKENS = [[3, 1, 2], [4], [2, 2, 5, 1], [1, 3], [5, 5], [2]]
SICK = [0, 1, 1, 0, 1, 0]
WHO = ["a", "b", "a", "b", "a", "b"]


class Bag(nn.Module):
    """The mean embedding of what the mask shows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 3), nn.Linear(3, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        shown = self.embed(input_ids) * attention_mask[..., None]
        return self.head(shown.sum(1) / attention_mask.sum(1, keepdim=True))


def _bag() -> nn.Module:
    torch.manual_seed(3)
    return Bag()


def _by_hand(model: nn.Module) -> float:
    """The mean over clients of the mean loss, one sample at a time and without padding."""
    losses = [
        float(F.cross_entropy(model(torch.tensor([t]), torch.ones(1, len(t))), torch.tensor([y])))
        for t, y in zip(TOKENS, SICK, strict=True)
    ]
    return float(np.mean([np.mean(losses[0::2]), np.mean(losses[1::2])]))


def _objective(task: fl.Task) -> float:
    return float(task.objective(task.start()[0]))


@torch.no_grad()
def test_token_lists_are_padded_next_to_a_mask() -> None:
    datasets = pytest.importorskip("datasets")
    expected = pytest.approx(_by_hand(_bag()), abs=1e-6)
    lists = fl.Task.from_arrays(TOKENS, SICK, client=WHO, model=_bag())
    assert lists.data[0].shape == lists.data[1].shape == (6, 4)
    assert lists.data[1].sum(1).tolist() == [len(t) for t in TOKENS]
    assert _objective(lists) == expected
    pairs = [(torch.tensor(t), y) for t, y in zip(TOKENS, SICK, strict=True)]
    owners = [[0, 2, 4], [1, 3, 5]]
    assert _objective(fl.Task(_bag(), "cross_entropy", Listed(pairs), owners)) == expected
    rows = {"input_ids": TOKENS, "sick": SICK, "who": WHO}
    table = datasets.Dataset.from_dict(rows)
    for inputs in ("input_ids", ["input_ids"], ["attention_mask", "input_ids"]):
        task = fl.Task.from_huggingface(
            table, inputs=inputs, target="sick", client="who", model=_bag(), padding=7
        )
        assert _objective(task) == expected
    masks = [[1] * len(t) for t in TOKENS]
    table = datasets.Dataset.from_dict({**rows, "attention_mask": masks})
    task = fl.Task.from_huggingface(
        table, inputs=["input_ids", "attention_mask"], target="sick", client="who", model=_bag()
    )
    assert _objective(task) == expected
    assert task.data[1].sum(1).tolist() == [len(t) for t in TOKENS]


@torch.no_grad()
def test_text_goes_through_a_tokenizer() -> None:
    datasets = pytest.importorskip("datasets")
    texts = [" ".join("xabcdefgh"[t] for t in tokens) for tokens in TOKENS]

    def plain(text: str) -> list[int]:
        return ["xabcdefgh".index(word) for word in text.split()]

    def like_transformers(text: str) -> dict[str, list[int]]:
        return {"input_ids": plain(text), "attention_mask": [1] * len(plain(text))}

    table = datasets.Dataset.from_dict({"text": texts, "sick": SICK, "who": WHO})
    both = datasets.DatasetDict(train=table, test=table.select([1, 3]))
    for tokenizer in (plain, like_transformers):
        task = fl.Task.from_huggingface(
            both, inputs="text", target="sick", client="who", tokenizer=tokenizer, model=_bag()
        )
        assert _objective(task) == pytest.approx(_by_hand(_bag()), abs=1e-6)
        assert task.test[0].shape == (2, 2)  # padded to its own longest text
        assert np.isfinite(task.evaluate(task.start()[0])["test_loss"])
    with pytest.raises(fl.FairleadError, match="column 'text' holds text: give a tokenizer"):
        fl.Task.from_huggingface(table, inputs="text", target="sick", client="who", model=_bag())


def test_a_model_without_a_mask_is_told_about_it() -> None:
    model = nn.Sequential(nn.EmbeddingBag(9, 3), nn.Linear(3, 2))
    with pytest.raises(fl.FairleadError, match="padded lists come with a mask"):
        fl.Task.from_arrays(TOKENS, SICK, client=WHO, model=model)


class Tagger(nn.Module):
    """Scores for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 3), nn.Linear(3, 9)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.embed(ids))


def test_losses_and_metrics_leave_padding_out() -> None:
    torch.manual_seed(4)
    model = Tagger()
    task = fl.Task.from_arrays(
        TOKENS, _padded(TOKENS), client=WHO, model=model, test=(TOKENS, _padded(TOKENS))
    )
    with torch.no_grad():
        outputs = [model(torch.tensor([t]), None)[0] for t in TOKENS]
    labels = [torch.tensor(t) for t in TOKENS]
    each = [float(F.cross_entropy(o, t)) for o, t in zip(outputs, labels, strict=True)]
    right = [float((o.argmax(1) == t).float().mean()) for o, t in zip(outputs, labels, strict=True)]
    found = task.evaluate(task.start()[0])
    assert found["loss"] == pytest.approx(np.mean([np.mean(each[0::2]), np.mean(each[1::2])]))
    assert found["test_loss"] == pytest.approx(np.mean(each))
    assert found["accuracy"] == pytest.approx(np.mean(right))
    x, y = task.data[:2], task.data[2]
    torchs = fl.Task(_Turned(model), nn.CrossEntropyLoss(), (x, y), [[0, 2, 4], [1, 3, 5]])
    assert _objective(torchs) == pytest.approx(found["loss"])
    runs = [
        fl.train(task, fl.FedAvg(lr=0.5), rounds=2, batch_size=2, engine=e)
        for e in ("vmap", "debug")
    ]
    torch.testing.assert_close(runs[0].x, runs[1].x)


class _Turned(nn.Module):
    """Classes on the second axis, where torch's own loss has them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model(ids, mask).movedim(-1, 1)


def _padded(lists: list[list[int]]) -> np.ndarray:
    width = max(map(len, lists))
    return np.array([[*t, *[IGNORED] * (width - len(t))] for t in lists])


def test_next_tokens() -> None:
    datasets = pytest.importorskip("datasets")
    torch.manual_seed(4)
    model, texts = Tagger(), TOKENS[:1] + TOKENS[2:5]
    table = datasets.Dataset.from_dict({"tokens": texts, "who": list("abab")})
    task = fl.Task.from_huggingface(
        table, inputs="tokens", target="tokens", client="who", model=model, loss="next_token",
        test=table,
    )  # fmt: skip
    assert task.data[2].tolist() == _padded(texts).tolist()
    with torch.no_grad():
        each = [
            float(F.cross_entropy(model(torch.tensor([t]), None)[0, :-1], torch.tensor(t[1:])))
            for t in texts
        ]
    found = task.evaluate(task.start()[0])
    assert found["test_loss"] == pytest.approx(np.mean(each))
    assert 0 <= found["accuracy"] <= 1


def test_only_token_lists_are_padded() -> None:
    with pytest.raises(fl.FairleadError, match=r"must have one shape, but there are \(2,\) and"):
        fl.Task.from_arrays([[0.5, 1.0], [0.5, 1.0, 2.0]], [0, 1], client=[0, 1], model=_bag())


# -- tables ---------------------------------------------------------------------------------------

COLUMNS: dict[str, list[Any]] = {
    "town": ["lyon", "bern", "lyon", "bern", "lyon", "bern"],
    "age": [31, 45, 28, 61, 50, 33],
    "weight": [60.5, 70.0, 55.0, 82.0, 77.5, 64.0],
    "colour": ["red", "blue", "red", "green", "blue", "red"],
    "smokes": [True, False, False, True, True, False],
    "sick": ["no", "yes", "no", "yes", "yes", "no"],
}


def _tables() -> dict[str, Any]:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    pyarrow = pytest.importorskip("pyarrow")
    frame, other = pandas.DataFrame(COLUMNS), polars.DataFrame(COLUMNS)
    return {
        "pandas": frame,
        "nullable": frame.convert_dtypes(),
        "categories": frame.astype({"colour": "category", "town": "category"}),
        "polars": other,
        "query": other.lazy(),
        "polars-categories": other.with_columns(polars.col("colour").cast(polars.Categorical)),
        "pyarrow": pyarrow.table(COLUMNS),
    }


def test_tables_of_every_kind_are_the_same_task() -> None:
    expected = fl.Task.from_table(
        {name: np.array(values) for name, values in COLUMNS.items()}, target="sick", client="town"
    )
    for table in _tables().values():
        task = fl.Task.from_table(table, target="sick", client="town")
        assert task.sizes.tolist() == expected.sizes.tolist()
        for mine, theirs in zip(task.data, expected.data, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_tables_with_a_split_of_ones_own() -> None:
    task = fl.Task.from_table(
        COLUMNS, target="sick", features=["age"], clients=[[0, 1], [2, 3], [4, 5]]
    )
    assert task.sizes.tolist() == [2, 2, 2]
    with pytest.raises(fl.FairleadError, match="give a dict of columns, or a table of pandas"):
        fl.Task.from_table([1, 2], target="sick", client="town")


def test_gaps_are_found_in_every_kind_of_table() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    holes = {**COLUMNS, "age": [31, None, 28, 61, 50, 33]}
    frame = pandas.DataFrame(holes)
    for table in (frame, frame.convert_dtypes(), polars.DataFrame(holes)):
        with pytest.raises(fl.FairleadError, match=r"column age has 1 empty cells.* row 1"):
            fl.Task.from_table(table, target="sick", client="town")


def test_the_loss_of_torch_gets_classes_from_arrays_too() -> None:
    words = np.array(["no", "yes"])[Y]
    named = fl.Task.from_arrays(X, words, clients=OWNERS)
    torchs = fl.Task.from_arrays(X, words, clients=OWNERS, loss=nn.CrossEntropyLoss())
    torch.testing.assert_close(_x(named), _x(torchs))
    assert list(torchs.metrics) == ["accuracy"]
