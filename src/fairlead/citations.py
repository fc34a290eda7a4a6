"""The papers behind the methods, for `fairlead list` and for your bibliography."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper, cited shortly or as BibTeX."""

    key: str
    authors: str
    title: str
    venue: str
    year: int

    @property
    def short(self) -> str:
        """Authors and year, for tables."""
        names = self.authors.split(" and ")
        last = [name.split(",")[0] for name in names]
        who = f"{last[0]} et al." if len(last) > 2 else " and ".join(last)
        return f"{who} {self.year}"

    @property
    def bibtex(self) -> str:
        """A BibTeX entry."""
        fields = (("author", self.authors), ("title", self.title), ("booktitle", self.venue),
                  ("year", str(self.year)))  # fmt: skip
        body = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields)
        return f"@inproceedings{{{self.key},\n{body}\n}}"


PAPERS = {
    "fedavg": Paper(
        "mcmahan2017communication",
        "McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and "
        "Agüera y Arcas, Blaise",
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        "AISTATS",
        2017,
    ),
    "fedprox": Paper(
        "li2020federated",
        "Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and "
        "Talwalkar, Ameet and Smith, Virginia",
        "Federated Optimization in Heterogeneous Networks",
        "MLSys",
        2020,
    ),
    "scaffold": Paper(
        "karimireddy2020scaffold",
        "Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank and "
        "Stich, Sebastian and Suresh, Ananda Theertha",
        "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        "ICML",
        2020,
    ),
}
