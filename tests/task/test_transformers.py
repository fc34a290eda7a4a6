"""Tiny random models of transformers and peft, where these are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fairlead as fl

pytestmark = [
    pytest.mark.slow,
    # what these libraries say about themselves
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
WORDS, LENGTH = 30, 7


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


def _text() -> tuple[dict[str, Tensor], Tensor]:
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, LENGTH + 1, (24,), generator=g)
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    ids = torch.randint(1, WORDS, (24, LENGTH), generator=g) * mask
    return {"input_ids": ids, "attention_mask": mask}, torch.randint(3, (24,), generator=g)


def _task(make: Callable[[], Any], loss: str) -> fl.Task:
    inputs, labels = _text()
    hidden = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    target = hidden if loss == "next_token" else labels
    owners = [range(10), range(10, 16), range(16, 24)]
    data = inputs, target
    return fl.Task(make, loss, data, owners, test=data, dtype=torch.float64)


def _bert(t: Any, dropout: float = 0.0) -> Any:
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return t.BertForSequenceClassification(
        t.BertConfig(
            **sizes, intermediate_size=32, max_position_embeddings=16, num_labels=3,
            hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        )
    )  # fmt: skip


def _gpt(t: Any) -> Any:
    sizes = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return t.GPT2LMHeadModel(t.GPT2Config(**sizes, **none, bos_token_id=0, eos_token_id=0))


def _llama(t: Any) -> Any:
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
    }
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32}
    tokens = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    config = t.LlamaConfig(**sizes, **heads, **tokens, attn_implementation="eager")
    return t.LlamaForCausalLM(config)


MODELS = {
    "bert": (_bert, "cross_entropy"),
    "gpt2": (_gpt, "next_token"),
    "llama": (_llama, "next_token"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_train_in_every_engine_that_can(
    name: str, transformers: Any
) -> None:
    make, loss = MODELS[name]
    task = _task(lambda: make(transformers), loss)
    assert task.buffer_dim == 0  # tables of positions and frequencies are no statistics
    settings = {"rounds": 2, "batch_size": 4}
    expected = fl.train(task, fl.Scaffold(lr=0.1), engine="debug", **settings)
    assert expected.history.last("loss") < expected.history["loss"][0]
    runs = [fl.train(task, fl.Scaffold(lr=0.1), engine=e, **settings) for e in ("auto", "loop")]
    if runs[0].engine.startswith("vmap"):
        runs.append(fl.train(task, fl.Scaffold(lr=0.1), engine="vmap", **settings))
    else:
        with pytest.raises(fl.FairleadError, match=r'vmap cannot run.*; use engine="loop"$'):
            fl.train(task, fl.Scaffold(lr=0.1), engine="vmap", **settings)
    for run in runs:
        torch.testing.assert_close(run.x, expected.x, rtol=0, atol=1e-11)
    trained = expected.model()
    assert type(trained) is type(make(transformers))
    inputs, labels = _text()
    if loss == "cross_entropy":  # the library's own loss agrees
        with torch.no_grad():
            theirs = trained(**inputs, labels=labels).loss
        assert expected.history.last("test_loss") == pytest.approx(float(theirs), abs=1e-9)


def test_dropout_of_transformers_draws_anew(transformers: Any) -> None:
    task = _task(lambda: _bert(transformers, dropout=0.5), "cross_entropy")
    assert task.draws_masks
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=1, batch_size=4)
    assert torch.isfinite(run.x).all()


def test_peft_trains_and_sends_the_adapters_alone(transformers: Any) -> None:
    peft = pytest.importorskip("peft")

    def make() -> Any:
        config = peft.LoraConfig(
            r=2, target_modules=["query", "value"], modules_to_save=["classifier"]
        )
        return peft.get_peft_model(_bert(transformers), config)

    task = _task(make, "cross_entropy")
    assert task.dim == 2 * 2 * 2 * (2 * 16) + 16 * 3 + 3  # layers × matrices × rank × sizes, head
    settings = {"rounds": 2, "batch_size": 4}
    run, other = (
        fl.train(task, fl.FedAvg(lr=0.1), engine=e, **settings) for e in ("auto", "debug")
    )
    torch.testing.assert_close(run.x, other.x, rtol=0, atol=1e-11)
    assert run.ledger.up == 2 * 3 * task.dim * 64
    torch.manual_seed(0)
    start = dict(make().double().named_parameters())
    for name, value in run.model().named_parameters():
        assert torch.equal(value, start[name]) != value.requires_grad, name


def test_a_tokenizer_of_tokenizers_reads_text(transformers: Any) -> None:
    datasets, tokenizers = pytest.importorskip("datasets"), pytest.importorskip("tokenizers")
    texts = ["the cat sat", "a dog", "the dog sat on a cat", "on the cat"]
    words = ["[PAD]", "[UNK]", *dict.fromkeys(" ".join(texts).split())]
    model = tokenizers.models.WordLevel({w: k for k, w in enumerate(words)}, unk_token="[UNK]")
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    table = datasets.Dataset.from_dict({"text": texts, "label": [0, 1, 2, 1]})
    task = fl.Task.from_huggingface(
        table, inputs="text", target="label", clients=[[0, 1], [2, 3]], tokenizer=tokenizer,
        model=lambda: _bert(transformers),
    )  # fmt: skip
    assert task.data[0].shape == (4, 6)
    assert task.data[1].sum(1).tolist() == [3, 2, 6, 3]
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=3)
    assert run.history.last("loss") < run.history["loss"][0]
