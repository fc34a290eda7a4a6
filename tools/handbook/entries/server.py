"""Adaptive server steps."""

from handbook.entry import Entry, Picture

_ADAPTIVE = """The server treats the mean client step as a gradient and divides each of its coordinates by the root of its own past size, v.
Coordinates that move little are sped up, those that move much are slowed down, as {how}. Clients do what FedAvg's do, and
drift as they do. """


def _adaptive(
    name: str, title: str, optimizer: str, server_lr: float, how: str, more: str
) -> Entry:
    return Entry(
        name=name,
        title=title,
        where="Algorithm 2",
        line=f"FedAvg with {optimizer} at the server",
        idea=_ADAPTIVE.format(how=how) + more,
        picture=Picture(
            "A valley: f is steep across and flat along it. FedAvg's step size is limited by the steep direction, so it creeps along the "
            "flat one; the adaptive server makes both equally long.",
            "fl.FedAvg(lr=0.2)", f"fl.{title}(lr=0.2, server_lr={server_lr})", problem="valley", rounds=80, drawn=8,
        ),
        use=(
            "Where coordinates have very different scales: embeddings, rare words, sparse features.",
            "Where tuning is cheap: it has two step sizes and τ, which sets how adaptive it is.",
        ),
        avoid=(
            "Against client drift: its fixed points are those of FedAvg's mean step.",
            "If you cannot tune `server_lr`: its steps do not shrink with the clients', so a wrong one diverges or crawls.",
        ),
        call=f"fl.{title}(lr=1.0, server_lr=0.1)",
        programs=("FedOpt.round", "FedOpt.local_steps", f"{title}.second"),
        theory_note="The papers behind `fl.theory` do not treat it.",
    )  # fmt: skip


SERVER = (
    _adaptive("fedadagrad", "FedAdagrad", "Adagrad", 1.5, "in Adagrad",
              "v is the sum of all squared steps, so step sizes only fall: good for convex problems and sparse features."),
    _adaptive("fedadam", "FedAdam", "Adam", 0.3, "in Adam",
              "v is a moving average of squared steps, so step sizes recover when a coordinate calms down."),
    _adaptive("fedyogi", "FedYogi", "Yogi", 0.3, "in Yogi",
              "v moves towards the squared step by an amount that does not depend on v, so one large round cannot raise it for long."),
    Entry(
        name="fedexp",
        title="FedExP",
        where="Algorithm 1",
        line="FedAvg with an extrapolated server step",
        idea="""Where clients disagree, their steps cancel in the mean and FedAvg moves too little. FedExP measures by how much they
cancel, the mean squared length over the squared length of the mean, and makes the server's step longer by half of that, never
shorter. It needs no tuning, and clients send what they send in FedAvg.""",
        picture=Picture(
            "Each client is content anywhere on a line, and the lines cross at x*. The clients' steps almost cancel, so their mean is short; "
            "FedExP's server makes it longer, the more so the more they cancel.",
            "fl.FedAvg(lr=0.3)", "fl.FedExP(lr=0.3, average=True)", problem="lines", drawn=6,
        ),
        use=(
            "To speed FedAvg up where there are more parameters than the clients' data can pin down, as its theory assumes.",
            "With `average=True`: the mean of the last two iterates removes the swing.",
        ),
        avoid=(
            "Near the optimum of clients that differ: ‖mean‖² goes to zero there, and only `eps` bounds the step.",
            "With a server optimizer or `server_lr`, which it sets itself.",
        ),
        call="fl.FedExP(lr=1.0)",
        programs=("FedExP.round", "FedAvg.local_steps"),
        theory_note="The papers behind `fl.theory` do not treat it.",
    ),
)  # fmt: skip
