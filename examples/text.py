"""Text: a recurrent network that guesses the next character, on clients that each have their own dialect.

    python examples/text.py              # or: python examples/text.py 3  for three rounds

The texts are generated, so that how far dialects differ is a setting. With your own texts, `fl.Task.from_huggingface` takes a column of
strings and a tokenizer.
"""

from __future__ import annotations

import sys

import fairlead as fl
from fairlead.data.text import dialects


def task(difference: float) -> fl.Task:
    """Twelve clients; difference is the share of a client's own habits in what it writes."""
    data = dialects(clients=12, difference=difference, length=300)
    assert data.groups is not None
    clients = fl.splits.by_id(data.groups)
    model = fl.models.char_gru(12, hidden=32)
    return fl.Task(
        model, "cross_entropy", (data.x, data.y), clients, test=(data.x_test, data.y_test)
    )


def main(rounds: int = 20, differences: tuple[float, ...] = (0.1, 0.5)) -> None:
    print(f"{'dialects differ by':>18} {'method':8} {'accuracy':>9}")
    for difference in differences:
        for method in (fl.FedAvg(lr=2.0), fl.Scaffold(lr=2.0)):
            run = fl.train(
                task(difference), method, rounds=rounds, cohort=6, steps=5, batch_size=32
            )
            print(
                f"{difference:18.0%} {type(method).__name__:8} {run.history.best('accuracy'):9.3f}"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
