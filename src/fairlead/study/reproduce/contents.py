"""What the five papers contain, item by item, and what stands for each algorithm and theorem here.

Tables and figures are in `papers.ITEMS`, with their recipes.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.study.reproduce.papers import DRIFT, GLOMO, PVR, SADDLE, SCAFFOLD

CITED = {
    SCAFFOLD: "Karimireddy et al. 2020, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    SADDLE: "Hou et al. 2021, Efficient Algorithms for Federated Saddle Point Optimization",
    DRIFT: "Dhasade, Kremer and Renard, An Insight into the Impact of Data Heterogeneity on the Performance of the FedAvg Algorithm",
    GLOMO: "Das et al. 2022, Faster Non-Convex Federated Learning via Global and Local Momentum",
    PVR: "Li et al. 2023, On the Effectiveness of Partial Variance Reduction in Federated Learning with Heterogeneous Data",
}
"""The papers, by the names that recipes use."""

CONTENTS: dict[str, dict[str, str]] = {
    SCAFFOLD: {
        "Algorithm": "1 2",
        "Theorem": "I II III IV V VI VII VIII",
        "Table": "1 2 3 4 5",
        "Figure": "1 2 3",
    },
    SADDLE: {
        "Algorithm": "1 2 3 4 5",
        "Theorem": "1 2 3 4 5 6 7 8 9 10",
        "Table": "1 2",
        "Figure": "1 2",
    },
    DRIFT: {"Algorithm": "1", "Theorem": "2.1", "Figure": "1 2 3 4 5", "Appendix": "figures"},
    GLOMO: {
        "Algorithm": "1 2 3 4 5",
        "Theorem": "1 2 3",
        "Table": "1",
        "Figure": "1 2 3 4 5 6 7 8 9 10",
    },
    PVR: {
        "Algorithm": "I II",
        "Theorem": "1 II",
        "Corollary": "I",
        "Table": "1 2 3 C.1 C.2",
        "Figure": "1 2 3 4 5 C.1 C.2 C.3",
    },
}
"""The numbers of the papers' algorithms, theorems, tables and figures."""


@dataclass(frozen=True)
class Entry:
    """What stands for an algorithm or theorem here.

    names: public names. status: one of `STATUSES`. test: what shows it. reading: how an open point or a misprint
    is read.
    """

    names: tuple[str, ...]
    status: str
    test: str
    reading: str = ""


AS_PRINTED, MENDED, FOLLOWS, REPAIRED, FALSE, RATE = (
    "as printed", "misprint mended", "checked", "repaired", "false as printed", "rate",
)  # fmt: skip
STATUSES = {
    AS_PRINTED: "an algorithm that runs here line by line",
    MENDED: "an algorithm that runs here, with a misprint put right",
    FOLLOWS: "a bound that follows from its proof and held in 1000 random settings",
    REPAIRED: "a bound whose printed constants or conditions do not follow from its proof; what does follow held in 1000 random "
    "settings",
    FALSE: "a bound that a counterexample refutes as printed; the repaired one held in 1000 random settings",
    RATE: "a rate up to constants, of which only ratios can be compared",
}
"""What a status means."""

_BY_HAND = "tests/methods/test_scaffold.py::test_two_rounds_by_hand"
_BOUNDS = "tests/theory/test_bounds.py::test_"
_SADDLE = "tests/theory/test_saddle_theory.py::test_"
_RATES = "tests/theory/test_theory.py::test_rates_say_what_the_papers_say"
_REFERENCE = "tests/methods/test_reference_saddle.py::test_method"

ENTRIES: dict[tuple[str, str], Entry] = {
    (SCAFFOLD, "Algorithm 1"): Entry(
        ("fl.Scaffold",),
        AS_PRINTED,
        _BY_HAND,
        "1/(Kη) is one over the sum of the step sizes applied; |S| is the number of clients that answered; the text's (3), (6) "
        "and (19) have misprints that the box does not have",
    ),
    (SCAFFOLD, "Algorithm 2"): Entry(
        ("fl.FedAvg",), AS_PRINTED, "tests/methods/test_fedavg.py::test_one_round_by_hand"
    ),
    (SCAFFOLD, "Theorem I"): Entry(
        ("fl.theory.rates",), RATE, _RATES,
        "its step size has 6 where the proof (Theorem V) needs 8, and η_g ≥ √S where η_g ≥ 1 is enough",
    ),
    (SCAFFOLD, "Theorem II"): Entry(
        ("fl.theory.fedavg_lower",), FOLLOWS, _BOUNDS + "no_step_sizes_beat_the_lower_bound",
        "the main text's form of Theorem VI",
    ),
    (SCAFFOLD, "Theorem III"): Entry(("fl.theory.rates",), RATE, _RATES, "the rate of Theorem VII"),
    (SCAFFOLD, "Theorem IV"): Entry(
        ("fl.theory.rates", "fl.theory.best_local_steps"), RATE,
        "tests/theory/test_local_steps.py::test_rounds_fall_like_one_over_k_up_to_beta_over_delta",
        "the rate of Theorem VIII, for the update (28), not for Algorithm 1",
    ),
    (SCAFFOLD, "Theorem V"): Entry(
        ("fl.theory.fedavg",), REPAIRED, _BOUNDS + "fedavg_closed_form_as_printed",
        "the closed form is 3/2 too small to follow from the line above it",
    ),
    (SCAFFOLD, "Theorem VI"): Entry(
        ("fl.theory.fedavg_lower", "fl.theory.best_steps"), FOLLOWS,
        _BOUNDS + "no_step_sizes_beat_the_lower_bound",
        "the constant left open is (1 − e^(−1/8))/32",
    ),
    (SCAFFOLD, "Theorem VII"): Entry(
        ("fl.theory.scaffold", "fl.theory.scaffold_nonconvex"), FOLLOWS, _BOUNDS + "scaffold",
        "its non-convex part is for a warm start",
    ),
    (SCAFFOLD, "Theorem VIII"): Entry(
        ("fl.theory.scaffold_quadratics",), REPAIRED, _BOUNDS + "scaffold_on_quadratics",
        "the display has 1 − μη/2 per local step, its Lemma 22 gives 1 − μη/6",
    ),
    (SADDLE, "Algorithm 1"): Entry(
        ("fl.MirrorDescent", "fl.FedAvg", "fl.ScaffoldS"), AS_PRINTED,
        "tests/methods/test_identities.py::test_mirror_descent_with_total_is_scaffold_s_without_local_steps",
        "a framework: its methods are these; a step size per mapping or per sum of mappings (`total`)",
    ),
    (SADDLE, "Algorithm 2"): Entry(
        ("fl.ScaffoldS",), AS_PRINTED, _REFERENCE,
        "G(z̃) is the mean over the clients that answer, an exchange of its own",
    ),
    (SADDLE, "Algorithm 3"): Entry(
        ("fl.Catalyst",), MENDED, _REFERENCE,
        "the mapping of (14) is G_i + θ(z − z̄); the display below it prints a minus sign",
    ),
    (SADDLE, "Algorithm 4"): Entry(
        ("fl.FedAvg",), AS_PRINTED, _REFERENCE, "FedAvg on a saddle task; `steps=fl.Geometric(p)` for rounds of random length",
    ),
    (SADDLE, "Algorithm 5"): Entry(
        ("fl.Catalyst",), AS_PRINTED,
        "tests/task/test_saddle.py::test_one_exact_inner_solve_is_the_proximal_point",
        "Algorithm 3 with fixed inner rounds; “sufficient decrease” of the experiments is `decrease`",
    ),
    (SADDLE, "Theorem 1"): Entry(("fl.theory.rates",), RATE, _RATES, "the rate of Theorem 4"),
    (SADDLE, "Theorem 2"): Entry(("fl.theory.rates",), RATE, _RATES, "the rates of Theorems 5 to 7"),
    (SADDLE, "Theorem 3"): Entry(("fl.theory.rates",), RATE, _RATES, "the rates of Theorems 8 to 10"),
    (SADDLE, "Theorem 4"): Entry(
        ("fl.theory.fedavg_s",), REPAIRED, _SADDLE + "local_steps",
        "(28) lacks a factor 2; the same bound follows with other constants. β must bound how fast G_i changes",
    ),
    (SADDLE, "Theorem 5"): Entry(
        ("fl.theory.scaffold_s_anchor",), FALSE,
        "tests/theory/test_exact.py::test_saddle_45_as_printed_is_false",
        "the exponent of (45) is twice too large",
    ),
    (SADDLE, "Theorem 6"): Entry(("fl.theory.scaffold_s",), FOLLOWS, _SADDLE + "local_steps"),
    (SADDLE, "Theorem 7"): Entry(
        ("fl.theory.scaffold_s_similar",), REPAIRED, _SADDLE + "local_steps", "as Theorem 4",
    ),
    (SADDLE, "Theorem 8"): Entry(
        ("fl.theory.catalyst", "fl.theory.catalyst_plan"), FOLLOWS,
        _SADDLE + "catalyst_reaches_its_accuracy_in_the_planned_rounds", "θ = β − μ",
    ),
    (SADDLE, "Theorem 9"): Entry(
        ("fl.theory.catalyst_plan",), FOLLOWS, _SADDLE + "the_plan_meets_its_own_bound", "θ = β − μ",
    ),
    (SADDLE, "Theorem 10"): Entry(
        ("fl.theory.catalyst_plan",), FOLLOWS, _SADDLE + "the_plan_meets_its_own_bound", "θ = cμ",
    ),
    (DRIFT, "Algorithm 1"): Entry(
        ("fl.FedAvg",), MENDED, "tests/theory/test_misprints.py::test_fedavg_takes_tau_steps",
        "k runs over 0 … τ − 1; the box prints one step more",
    ),
    (DRIFT, "Theorem 2.1"): Entry(
        ("fl.theory.fedavg_shadow",), REPAIRED, _BOUNDS + "fedavg_study_without_noise",
        "L must bound the smoothness of every client; also (1) of the main text",
    ),
    (GLOMO, "Algorithm 1"): Entry(
        ("fl.FedGLOMO",), AS_PRINTED, "tests/methods/test_identities.py::test_fedglomo_by_hand",
        "the first round is line 10 with β = 1",
    ),
    (GLOMO, "Algorithm 2"): Entry(
        ("fl.FedGLOMO",), AS_PRINTED, "tests/methods/test_identities.py::test_fedglomo_by_hand",
        "separate noise for the two quantized vectors; without a compressor one vector is sent (Appendix B)",
    ),
    (GLOMO, "Algorithm 3"): Entry(
        ("fl.FedAvg", "fl.FedPAQ"), AS_PRINTED, "tests/methods/test_fedavg.py::test_one_round_by_hand"
    ),
    (GLOMO, "Algorithm 4"): Entry(
        ("fl.FedLOMO",), AS_PRINTED, "tests/methods/test_identities.py::test_fedglomo_with_beta_one_is_fedlomo",
    ),
    (GLOMO, "Algorithm 5"): Entry(
        ("fl.FedLOMO",), AS_PRINTED, "tests/methods/test_identities.py::test_fedlomo_by_hand",
        "`damping` is the factor 0.8 of the experiments, 1 in the box",
    ),
    (GLOMO, "Theorem 1"): Entry(
        ("fl.theory.fedglomo", "fl.theory.momentum"), REPAIRED,
        "tests/theory/test_theory.py::test_the_printed_range_of_local_steps_is_not_the_condition",
        "the conditions on η and β are checked themselves; the printed range of E is another one",
    ),
    (GLOMO, "Theorem 2"): Entry(
        ("fl.theory.fedlomo",), REPAIRED, _BOUNDS + "fedlomo", "K > X/(64B³) should have X²",
    ),
    (GLOMO, "Theorem 3"): Entry(
        ("fl.theory.fedavg_alpha",), REPAIRED, _BOUNDS + "fedavg_by_alpha",
        "Lemma 13 has an eighth of what Lemma 15 gives",
    ),
    (PVR, "Algorithm I"): Entry(
        ("fl.FedPVR",), MENDED, "tests/theory/test_misprints.py::test_fedpvr_line_14_keeps_no_fixed_point",
        "line 14 needs η_g before the mean; the layers are names, a count from the end, or from:16 as the figures count",
    ),
    (PVR, "Algorithm II"): Entry(
        ("fl.FedPVR",), MENDED, "tests/methods/test_identities.py::test_fedpvr_on_everything_is_scaffold",
        "Algorithm I with a mask in place of two lines",
    ),
    (PVR, "Theorem 1"): Entry(
        ("fl.theory.fedpvr", "fl.theory.fedpvr_nonconvex"), RATE, _BOUNDS + "fedpvr", "the rates of Theorem II",
    ),
    (PVR, "Theorem II"): Entry(
        ("fl.theory.fedpvr", "fl.theory.fedpvr_nonconvex"), FALSE,
        "tests/theory/test_exact.py::test_fedpvr_lemma_14_as_printed_is_false",
        "the non-convex part is false; the convex part follows for η̃ up to about 1/(154β), not 1/(80β)",
    ),
    (PVR, "Corollary I"): Entry(
        ("fl.theory.fedpvr",), RATE, _BOUNDS + "fedpvr", "Theorem II solved for the number of rounds",
    ),
}  # fmt: skip


def items(paper: str) -> list[str]:
    """The names of all items of a paper.

    >>> items("FedAvg under heterogeneity")[:3]
    ['Algorithm 1', 'Theorem 2.1', 'Figure 1']
    """
    return [f"{kind} {n}" for kind, numbers in CONTENTS[paper].items() for n in numbers.split()]
