"""Every table and figure with numbers of the five papers: the recipe that reproduces it, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """A table or figure. why: the reason if no recipe reproduces it, or what its recipe leaves out."""

    paper: str
    item: str
    recipe: str = ""
    why: str = ""


SCAFFOLD, SADDLE, DRIFT = "SCAFFOLD", "Saddle points", "FedAvg under heterogeneity"
GLOMO, PVR = "FedGLOMO", "FedPVR"
NOTATION = "a table of notation"
NO_CIFAR100 = "CIFAR-100's columns need that data set, which no source here provides"

ITEMS = (
    Item(SCAFFOLD, "Figure 1", "drift-picture"),
    Item(SCAFFOLD, "Figure 2", "drift-picture"),
    Item(SCAFFOLD, "Figure 3", "scaffold-fig3"),
    Item(SCAFFOLD, "Table 1", why=NOTATION),
    Item(SCAFFOLD, "Table 2", why="rates, not measurements: see fl.theory"),
    Item(SCAFFOLD, "Table 3", "scaffold-table3", "stand-in data for EMNIST"),
    Item(SCAFFOLD, "Table 4", "scaffold-table4", "stand-in data for EMNIST"),
    Item(SCAFFOLD, "Table 5", "scaffold-table5", "stand-in data for EMNIST"),
    Item(SCAFFOLD, "Theorem II", "scaffold-lower"),
    Item(SCAFFOLD, "Theorem III", "scaffold-sampling"),
    Item(SCAFFOLD, "Theorem IV", "scaffold-kstar"),
    Item(SCAFFOLD, "Appendix F", "scaffold-privacy"),
    Item(SADDLE, "Figure 1", "saddle-fig1"),
    Item(SADDLE, "Figure 2", "saddle-fig2"),
    Item(SADDLE, "Table 1", "saddle-table1"),
    Item(SADDLE, "Table 2", why=NOTATION),
    Item(SADDLE, "Appendix A", "saddle-extra"),
    Item(DRIFT, "Figure 1", "drift-picture"),
    Item(DRIFT, "Figure 2", "drift-toy"),
    Item(DRIFT, "Figure 3", "drift-prox"),
    Item(DRIFT, "Figure 4", "femnist", "314 of 3,597 writers"),
    Item(DRIFT, "Figure 5", "drift-toy"),
    Item(DRIFT, "Appendix figures", why="illustrations of proofs, without numbers"),
    Item(GLOMO, "Table 1", why="rates, not measurements: see fl.theory"),
    *(Item(GLOMO, f"Figure {k}", f"glomo-fig{k}") for k in range(1, 11)),
    Item(GLOMO, "Appendix A", "glomo-cost"),
    Item(PVR, "Figure 1", why="its page is missing in our copy of the paper"),
    Item(PVR, "Figure 2", "pvr-fig2"),
    Item(PVR, "Figure 3", "pvr-fig3"),
    Item(PVR, "Figure 4", "pvr-fig4", "CIFAR-10 in place of CIFAR-100"),
    Item(PVR, "Figure 5", "pvr-fig5"),
    Item(PVR, "Table 1", why=NOTATION),
    Item(PVR, "Table 2", "pvr-table2", NO_CIFAR100),
    Item(PVR, "Table 3", "pvr-table3", NO_CIFAR100),
    Item(PVR, "Figure C.1", "pvr-figC1"),
    Item(PVR, "Figure C.2", "pvr-figC2"),
    Item(PVR, "Figure C.3", why=NO_CIFAR100),
    Item(PVR, "Table C.1", "pvr-table2", "step sizes, used there"),
    Item(PVR, "Table C.2", why=NO_CIFAR100),
    Item("new", "all methods", "all-methods"),
)


def order(name: str) -> tuple[int, str]:
    """The place of a recipe among the papers' items."""
    places = [k for k, item in enumerate(ITEMS) if item.recipe == name]
    return (places[0] if places else len(ITEMS), name)
