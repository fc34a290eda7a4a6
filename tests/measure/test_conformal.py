"""Prediction sets: scores by hand, against MAPIE, and coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fairlead as fl
from fairlead.measure import Conformal, conformal
from fairlead.measure.conformal import plot_coverage, quantile


def _random(n: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities, and labels drawn from other ones, so that the model is wrong."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, classes))
    p = torch.softmax(torch.tensor(logits), 1)
    q = torch.softmax(torch.tensor(0.6 * logits + rng.normal(size=(n, classes))), 1).numpy()
    y = torch.tensor([rng.choice(classes, p=row) for row in q])
    return p, y


def test_scores_by_hand() -> None:
    p = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    u = torch.tensor([0.5])
    expected = {
        Conformal("threshold"): [0.8, 0.5, 0.7],
        Conformal("aps"): [1.0, 0.5, 0.8],
        Conformal("aps", randomized=True): [0.9, 0.25, 0.65],
        Conformal("raps", penalty=0.1, k_reg=1): [1.2, 0.5, 0.9],
        Conformal("raps", randomized=True, penalty=0.1, k_reg=2): [1.0, 0.25, 0.65],
    }
    for how, scores in expected.items():
        found = how.scores(p, u if how.randomized else None)[0].tolist()
        assert found == pytest.approx(scores, abs=1e-12), how


def test_the_quantile_counts_one_more_sample() -> None:
    scores = torch.arange(9, dtype=torch.float64)
    assert quantile(scores, 0.1) == 8  # ⌈10·0.9⌉ = 9
    assert quantile(scores, 0.5) == 4
    assert quantile(scores, 0.05) == math.inf
    with pytest.raises(fl.FairleadError, match="kappa is 1"):
        quantile(scores, 1.0)


@pytest.mark.parametrize(
    "how",
    [Conformal("threshold"), *(Conformal(k, r) for k in ("aps", "raps") for r in (True, False))],
)
def test_coverage_on_exchangeable_data_is_in_its_exact_interval(how: Conformal) -> None:
    """With continuous scores the number of n_test covered samples follows a beta-binomial law; its 1 − 10⁻⁶ interval."""
    from scipy.stats import betabinom

    n, tests, kappa = 499, 4000, 0.1
    rng = np.random.default_rng(7)
    p, y = _random(n + tests, 6, seed=3)
    u = torch.tensor(rng.random(len(p))) if how.randomized else None
    scores = how.scores(p, u)
    true = scores.gather(1, y[:, None])[:, 0]
    covered = int((true[n:] <= quantile(true[:n], kappa)).sum())
    place = math.ceil((n + 1) * (1 - kappa))
    low, high = betabinom(tests, place, n + 1 - place).interval(1 - 1e-6)
    assert low <= covered <= high


@pytest.mark.filterwarnings("ignore")
def test_against_mapie() -> None:
    """The same sets as MAPIE's LAC, and with its random numbers the same APS and RAPS scores and APS sets."""
    pytest.importorskip("mapie")
    from mapie.classification import SplitConformalClassifier
    from mapie.conformity_scores import APSConformityScore, RAPSConformityScore
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):
        """A classifier whose inputs are its probabilities."""

        classes_ = np.arange(5)
        fitted_ = True

        def fit(self, X, y):
            return self

        def predict_proba(self, X):
            return X

        def predict(self, X):
            return X.argmax(1)

    p, y = _random(900, 5, seed=1)
    held, test = slice(0, 400), slice(400, None)
    for kappa in (0.05, 0.1, 0.3):
        lac = SplitConformalClassifier(
            Given(), confidence_level=1 - kappa, conformity_score="lac", prefit=True
        )
        lac.conformalize(p[held].numpy(), y[held].numpy())
        theirs = lac.predict_set(p[test].numpy())[1][:, :, 0]
        how = Conformal("threshold")
        scores = how.scores(p)
        true = scores[held].gather(1, y[held, None])[:, 0]
        np.testing.assert_array_equal((scores[test] <= quantile(true, kappa)).numpy(), theirs)

        aps = SplitConformalClassifier(
            Given(), confidence_level=1 - kappa, conformity_score="aps", prefit=True, random_state=4
        )
        aps.conformalize(p[held].numpy(), y[held].numpy())
        theirs = aps.predict_set(
            p[test].numpy(), conformity_score_params={"include_last_label": False}
        )[1]
        u = torch.tensor(1 - np.random.RandomState(4).uniform(size=400))
        how = Conformal("aps", randomized=True)
        true = how.scores(p[held], u).gather(1, y[held, None])[:, 0]
        ours = Conformal("aps").scores(p[test]) <= quantile(true, kappa)
        first = torch.nn.functional.one_hot(p[test].argmax(1), 5).bool()
        ours = ours | (first & ~ours.any(1, keepdim=True))  # MAPIE leaves no set empty
        np.testing.assert_array_equal(ours.numpy(), theirs[:, :, 0])

    labels = y[held].numpy()
    sums, cutoff = APSConformityScore.get_true_label_cumsum_proba(
        labels, p[held].numpy(), np.arange(5)
    )
    for k_reg, penalty in ((1, 0.1), (2, 0.3)):
        theirs = RAPSConformityScore._regularize_conformity_score(
            np.array([k_reg]), penalty, sums, cutoff
        )
        how = Conformal("raps", penalty=penalty, k_reg=k_reg)
        ours = how.scores(p[held]).gather(1, y[held, None])[:, 0]
        np.testing.assert_allclose(ours.numpy(), theirs[:, 0, 0], rtol=1e-12)


@pytest.fixture(scope="module")
def trained() -> fl.Run:
    task = fl.tasks.digits(clients=6, split="shards", split_value=2, valid=0.25)
    return fl.train(task, fl.FedAvg(lr=0.5), rounds=8, epochs=1, batch_size=20)


@pytest.mark.parametrize("kind", ["threshold", "aps", "raps"])
def test_sets_of_a_trained_model(trained: fl.Run, kind: str) -> None:
    found = conformal(trained, kind=kind)
    task = trained.task
    assert found.calibration == len(task.valid[0])
    assert found.accuracy == pytest.approx(trained.history.last("accuracy"))
    assert (np.diff(found.coverage) <= 1e-12).all()  # κ grows
    assert (np.diff(found.size) <= 1e-12).all()
    assert found.by_client.shape == (len(found.kappas), 6)
    counts = np.bincount(task.test[1].numpy(), minlength=10)
    np.testing.assert_allclose(found.by_class @ counts / counts.sum(), found.coverage)
    # marginal coverage is right, clients' differ
    n = found.test
    for kappa in (0.05, 0.1, 0.2):
        row = found.at(kappa)
        assert abs(row["coverage"] - (1 - kappa)) < 4 * math.sqrt(
            kappa * (1 - kappa) * (1 / n + 1 / found.calibration)
        )
        assert row["highest_client"] - row["lowest_client"] > 0.02
    size = found.smallest_size(0.9)
    assert size is not None
    assert size == min(s for s, c in zip(found.size, found.coverage, strict=True) if c >= 0.9)
    assert found.smallest_size(1.1) is None
    with pytest.raises(fl.FairleadError, match="was not computed"):
        found.at(0.123)


def test_clients_are_calibrated_on_the_others(trained: fl.Run) -> None:
    task = trained.task
    p, y = fl.measure.probabilities(task, trained.x, task.valid)
    true = Conformal("aps").scores(p).gather(1, y[:, None])[:, 0]
    mine = torch.tensor(task.valid_owners == 2)
    assert 0 < int(mine.sum()) < len(y)
    expected = (true[mine] <= quantile(true[~mine], 0.1)).double().mean()
    assert conformal(trained, kind="aps", kappas=[0.1]).by_client[0, 2] == pytest.approx(
        float(expected)
    )


def test_half_of_the_test_data_calibrates_without_validation_data() -> None:
    task = fl.tasks.digits(clients=4, split="shards", split_value=2)
    run = fl.train(task, fl.FedAvg(lr=0.5), rounds=3, epochs=1, batch_size=20)
    found = conformal(run, kind=Conformal("aps", randomized=True), kappas=[0.1])
    assert found.calibration + found.test == len(task.test[0])
    assert "half of the test data" in found.notes[0]
    share = np.bincount(task.data[1][task.split[1]].numpy(), minlength=10)
    expected = (found.by_class[0] * share).sum() / share.sum()
    assert found.by_client[0, 1] == pytest.approx(expected)


def test_two_classes_with_signs_and_tasks_without_labels(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = np.where(x[:, 0] + 0.5 * rng.normal(size=300) > 0, 1.0, -1.0)
    test = (torch.tensor(x[200:]), torch.tensor(y[200:]))
    task = fl.problems.logistic_regression(
        x[:200], y[:200], [range(100), range(100, 200)], test=test
    )
    found = conformal(task, task.optimum, kappas=[0.1, 0.3])
    assert found.by_class.shape == (2, 2)
    assert 0.7 < found.coverage[0] <= 1
    path = plot_coverage({"logistic": found}, tmp_path / "coverage.png", accuracy=found.accuracy)
    assert path.stat().st_size > 1000
    with pytest.raises(fl.FairleadError, match="give the task some"):
        conformal(fl.problems.theorem2())
    with pytest.raises(fl.FairleadError, match="did you mean 'raps'"):
        Conformal("rap")
