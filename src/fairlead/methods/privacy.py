"""How private clipped and noisy means are, by the Rényi accountant of the package dp-accounting."""

from __future__ import annotations

from typing import Any, Literal

from fairlead.errors import FairleadError, needed, unknown

Sampling = Literal["fixed", "poisson"]


def epsilon(
    noise: float,
    delta: float,
    rounds: int,
    clients: int,
    cohort: int,
    sampling: Sampling = "fixed",
) -> float:
    """The ε of (ε, δ) differential privacy for clients, after so many rounds with cohorts of this size.

    noise: z, the standard deviation of the noise in the sum of the clients' steps over their largest norm.
    sampling: "fixed" is what `train` does: cohorts of one size, chosen uniformly, and privacy against replacing
        one client's data. "poisson" is the usual figure of the literature: every client takes part with
        probability cohort/clients, and privacy against adding or removing one.
    """
    if sampling not in ("fixed", "poisson"):
        raise unknown("sampling", str(sampling), ["fixed", "poisson"])
    if not 1 <= cohort <= clients:
        raise FairleadError(
            f"cohort is {cohort}: must be from 1 to {clients}, the number of clients"
        )
    dp: Any = needed("dp_accounting", "dp-accounting")
    relation = dp.NeighboringRelation
    if sampling == "fixed":  # replacing a client moves the sum by up to twice the norm
        accountant = dp.rdp.RdpAccountant(neighboring_relation=relation.REPLACE_ONE)
        one = dp.GaussianDpEvent(noise / 2)
        one = dp.SampledWithoutReplacementDpEvent(clients, cohort, one)
    else:
        accountant = dp.rdp.RdpAccountant(neighboring_relation=relation.ADD_OR_REMOVE_ONE)
        one = dp.PoissonSampledDpEvent(cohort / clients, dp.GaussianDpEvent(noise))
    accountant.compose(dp.SelfComposedDpEvent(one, rounds))
    return float(accountant.get_epsilon(delta))
