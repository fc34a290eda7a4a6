"""What an exchange costs on a network: latency, bandwidth down and up, and the slowest client's local steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from fairlead.engine.accounting import Ledger
from fairlead.errors import FairleadError

UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
FORM = "write down/up/latency, such as 10Mbit/1Mbit/50ms, and /0.2s for a local step if you know it"


@dataclass(frozen=True)
class Link:
    """The link of the slowest client.

    down, up: bits per second     latency: seconds per exchange
    step: seconds per local step of the slowest client; None to use what was measured here

    >>> Link.parse("10Mbit/1Mbit/50ms")
    Link(down=10000000.0, up=1000000.0, latency=0.05, step=None)
    """

    down: float
    up: float
    latency: float
    step: float | None = None

    @classmethod
    def parse(cls, text: str) -> Link:
        """From down/up/latency, and optionally the seconds of a local step."""
        parts = text.split("/")
        if len(parts) not in (3, 4):
            raise FairleadError(f"the link is '{text}': {FORM}")
        down, up = (_number(part, UNITS, text) for part in parts[:2])
        latency, *step = (_number(part, TIMES, text) for part in parts[2:])
        if not (down > 0 and up > 0):
            raise FairleadError(f"the link is '{text}': both bandwidths must be positive")
        return cls(down, up, latency, step[0] if step else None)

    def seconds(self, ledger: Ledger, steps: float, step: float) -> float:
        """The time of all exchanges in a ledger, with so many local steps in all. A round waits for all of its
        clients, which have this link each. step: the seconds of a local step if the link does not say.

        >>> import numpy as np
        >>> from fairlead.engine.accounting import Exchange
        >>> one = Exchange(0, np.array([0, 1]), down=10_000_000, up=np.array([500_000, 1_000_000]), nominal_up=0)
        >>> Link.parse("10Mbit/1Mbit/50ms").seconds(Ledger([one]), steps=5, step=0.1)
        2.55
        """
        found = 0.0
        for exchange in ledger.exchanges:
            if not exchange.measure:
                each = exchange.all_down / self.down + exchange.up / self.up
                found += self.latency + float(np.max(each, initial=0.0))
        return found + steps * (step if self.step is None else self.step)


def _number(part: str, units: dict[str, float], text: str) -> float:
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]+)\s*", part)
    unit = found[2].lower() if found else ""
    try:
        return float(found[1] if found else "") * units[unit]
    except (ValueError, KeyError) as error:
        raise FairleadError(f"cannot parse '{part}' of the link '{text}': {FORM}") from error
