"""The papers behind the methods, for `fairlead list` and for your bibliography."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.errors import FairleadError, unknown


@dataclass(frozen=True)
class Paper:
    """A paper, with a short citation and BibTeX."""

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
        authors = f"{last[0]} et al." if len(last) > 2 else " and ".join(last)
        return f"{authors} {self.year}"

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
    "fedpaq": Paper(
        "reisizadeh2020fedpaq",
        "Reisizadeh, Amirhossein and Mokhtari, Aryan and Hassani, Hamed and Jadbabaie, Ali and "
        "Pedarsani, Ramtin",
        "FedPAQ: A Communication-Efficient Federated Learning Method with Periodic Averaging and "
        "Quantization",
        "AISTATS",
        2020,
    ),
    "fedglomo": Paper(
        "das2022faster",
        "Das, Rudrajit and Acharya, Anish and Hashemi, Abolfazl and Sanghavi, Sujay and "
        "Dhillon, Inderjit S. and Topcu, Ufuk",
        "Faster Non-Convex Federated Learning via Global and Local Momentum",
        "UAI",
        2022,
    ),
    "fedpvr": Paper(
        "li2023effectiveness",
        "Li, Bo and Schmidt, Mikkel N. and Alstrøm, Tommy S. and Stich, Sebastian U.",
        "On the Effectiveness of Partial Variance Reduction in Federated Learning with "
        "Heterogeneous Data",
        "CVPR",
        2023,
    ),
    "mime": Paper(
        "karimireddy2021breaking",
        "Karimireddy, Sai Praneeth and Jaggi, Martin and Kale, Satyen and Mohri, Mehryar and "
        "Reddi, Sashank J. and Stich, Sebastian U. and Suresh, Ananda Theertha",
        "Breaking the Centralized Barrier for Cross-Device Federated Learning",
        "NeurIPS",
        2021,
    ),
    "fedcomgate": Paper(
        "haddadpour2021federated",
        "Haddadpour, Farzin and Kamani, Mohammad Mahdi and Mokhtari, Aryan and Mahdavi, Mehrdad",
        "Federated Learning with Compression: Unified Analysis and Sharp Guarantees",
        "AISTATS",
        2021,
    ),
    "feddyn": Paper(
        "acar2021federated",
        "Acar, Durmus Alp Emre and Zhao, Yue and Matas, Ramon and Mattina, Matthew and "
        "Whatmough, Paul and Saligrama, Venkatesh",
        "Federated Learning Based on Dynamic Regularization",
        "ICLR",
        2021,
    ),
    "scaffnew": Paper(
        "mishchenko2022proxskip",
        "Mishchenko, Konstantin and Malinovsky, Grigory and Stich, Sebastian and Richtárik, Peter",
        "ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication Acceleration! Finally!",
        "ICML",
        2022,
    ),
    "scaffold-m": Paper(
        "cheng2024momentum",
        "Cheng, Ziheng and Huang, Xinmeng and Wu, Pengfei and Yuan, Kun",
        "Momentum Benefits Non-IID Federated Learning Simply and Provably",
        "ICLR",
        2024,
    ),
    "fednova": Paper(
        "wang2020tackling",
        "Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent",
        "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
        "NeurIPS",
        2020,
    ),
    "fedopt": Paper(
        "reddi2021adaptive",
        "Reddi, Sashank J. and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and "
        "Rush, Keith and Konečný, Jakub and Kumar, Sanjiv and McMahan, H. Brendan",
        "Adaptive Federated Optimization",
        "ICLR",
        2021,
    ),
    "fedexp": Paper(
        "jhunjhunwala2023fedexp",
        "Jhunjhunwala, Divyansh and Wang, Shiqiang and Joshi, Gauri",
        "FedExP: Speeding Up Federated Averaging via Extrapolation",
        "ICLR",
        2023,
    ),
    "dp-fedavg": Paper(
        "mcmahan2018learning",
        "McMahan, H. Brendan and Ramage, Daniel and Talwar, Kunal and Zhang, Li",
        "Learning Differentially Private Recurrent Language Models",
        "ICLR",
        2018,
    ),
    "robust": Paper(
        "yin2018byzantine",
        "Yin, Dong and Chen, Yudong and Ramchandran, Kannan and Bartlett, Peter",
        "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        "ICML",
        2018,
    ),
    "saddle": Paper(
        "hou2021efficient",
        "Hou, Charlie and Thekumparampil, Kiran K. and Fanti, Giulia and Oh, Sewoong",
        "Efficient Algorithms for Federated Saddle Point Optimization",
        "arXiv:2102.06333",
        2021,
    ),
    "qsgd": Paper(
        "alistarh2017qsgd",
        "Alistarh, Dan and Grubic, Demjan and Li, Jerry and Tomioka, Ryota and Vojnovic, Milan",
        "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
        "NeurIPS",
        2017,
    ),
}


def cite(method: object) -> str:
    """The BibTeX of the paper behind a method, given as an object, a class or a name, and of its
    compressor and aggregation.

    >>> import fairlead as fl
    >>> print(fl.cite("scaffold").splitlines()[0])
    @inproceedings{karimireddy2020scaffold,
    """
    from fairlead.compress import QSGD
    from fairlead.methods import METHODS, PRESETS
    from fairlead.methods.aggregate import Median, TrimmedMean

    if isinstance(method, str):
        name = PRESETS[method][0] if method in PRESETS else method
        if name not in METHODS:
            raise unknown("method", method, [*METHODS, *PRESETS])
        method = METHODS[name]
    keys = [getattr(method, "paper", "")]
    if isinstance(getattr(method, "compressor", None), QSGD):
        keys.append("qsgd")
    if isinstance(getattr(method, "aggregate", None), Median | TrimmedMean):
        keys.append("robust")
    if keys[0] not in PAPERS:
        raise FairleadError(f"{method!r} names no paper: set its class attribute `paper`")
    return "\n".join(PAPERS[key].bibtex for key in keys)
