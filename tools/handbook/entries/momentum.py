"""Momentum across clients, batches and rounds."""

from handbook.entry import Cost, Entry, Picture

MOMENTUM = (
    Entry(
        name="fedlomo",
        title="FedLOMO",
        where="Algorithms 4 and 5",
        line="FedAvg with local variance-reducing momentum",
        idea="""A client starts its round with a full gradient (or one of a large batch) and then only adds, on each batch, how the
gradient has changed since the last point. The noise of a batch cancels in that difference, so local steps follow the client's own
objective closely. It is about noise inside a client, not about differences between clients.""",
        picture=Picture(
            "One sample per step, out of six per client. FedAvg's clients wander; FedLOMO's follow their own full gradient. Here the two "
            "nearly agree; drift between clients that do not would stay.",
            "fl.FedAvg(lr=0.1)", "fl.FedLOMO(lr=0.1)", problem="similar", settings={"steps": 6, "batch_size": 1}, drawn=5,
        ),
        use=("Where batches are small and noisy, and clients similar.",),
        avoid=(
            "If clients differ: drift remains; on full batches FedLOMO is FedAvg.",
            "If gradients are dear: two per step and a full pass per round; `first_batch=256` replaces the pass.",
        ),
        call="fl.FedLOMO(lr=1.0)",
        programs=("FedLOMO.round", "FedLOMO.local", "FedLOMO.walk"),
        cost=Cost(gradients="n + 2*(K - 1)*b"),
        theorems=("fedlomo",),
        results=("glomo-cost",),
    ),
    Entry(
        name="fedglomo",
        title="FedGLOMO",
        where="Algorithms 1 and 2",
        line="FedLOMO with momentum at the server too",
        idea="""What FedLOMO does between batches, FedGLOMO also does between rounds: clients repeat their local steps from the last
model, on the same batches, and the server adds only the difference to its momentum. The noise of sampling clients and of coding
uploads cancels in part, and the error falls like K^(−2/3) instead of K^(−1/2).""",
        picture=Picture(
            "Both with uploads coded to 3 bits per number. The server's momentum averages the noise of coding over rounds.",
            "fl.FedLOMO(lr=0.05, compressor=fl.QSGD(3))", "fl.FedGLOMO(lr=0.05, beta=0.2, compressor=fl.QSGD(3))",
            problem="wide", settings={"steps": 6},
        ),
        use=(
            "With coded uploads or small cohorts, whose noise it is built against.",
            "With all clients in the first round, `cohort=fl.AllFirst(25)`, as its theory assumes.",
        ),
        avoid=(
            "If all clients take part without compression: it has then nothing to gain over FedLOMO (`fl.theory.when_it_pays` says so).",
            "If gradients are dear: it takes every local step twice.",
        ),
        call="fl.FedGLOMO(lr=1.0)",
        programs=("FedGLOMO.round", "FedGLOMO.pair", "FedGLOMO.combined", "FedLOMO.walk"),
        cost=Cost("d", "2*d + 2", gradients="2*n + 4*(K - 1)*b", note="β is sent as one number of 64 bits."),
        theorems=("fedglomo",),
        results=("glomo-fig1", "glomo-cost"),
    ),
    Entry(
        name="mime",
        title="Mime",
        where="the box of Mime and MimeLite",
        line="local steps that mimic centralized momentum",
        idea="""Mime asks: what would momentum SGD on all data do here? The server keeps the momentum and freezes it for the round, so that no
client's own data bend it; clients apply it in every local step, to a gradient that is corrected by the cohort's mean gradient as in
SVRG. Nothing is kept on clients, which makes it a method for clients that never come back.""",
        picture=Picture(
            "The correction g_i(y) − g_i(x) + c keeps clients together, and the frozen momentum carries over rounds.",
            "fl.FedAvg(lr=0.26)", "fl.Mime(lr=0.26, beta=0.5)",
        ),
        use=(
            "With very many clients, of which each takes part once: it keeps no client state.",
            "Where momentum helps in one place and FedAvg's drifts.",
        ),
        avoid=(
            "If exchanges or gradients are dear: two exchanges, two gradients per step and a full pass per round.",
            "If the cohort's mean gradient is far from that of all clients: the correction is towards the cohort.",
        ),
        call="fl.Mime(lr=1.0)",
        programs=("Mime.round", "Mime.gradient", "Mime.local", "Mime.next_momentum"),
        cost=Cost("2*d", "3*d", gradients="n + 2*K*b", exchanges=2),
        theory_note="The papers behind `fl.theory` use it as a baseline and state no theorem about it.",
        presets=("mime-mvr",),
        results=("glomo-cost",),
    ),
    Entry(
        name="mime-lite",
        title="MimeLite",
        where="the box of Mime and MimeLite",
        line="Mime without the correction of local gradients",
        idea="""Mime's frozen server momentum without its SVRG correction: local steps use the client's own gradient, mixed with the
momentum of all. Everything is known before the round, so one exchange is enough. With β near 1 most of a local step is the common
direction, and drift is that much smaller.""",
        picture=Picture(
            "Part of every step is the momentum that all clients share, so they part less. The fixed point is still off x*.",
            "fl.FedAvg(lr=0.26)", "fl.MimeLite(lr=0.26, beta=0.7)", rounds=60,
        ),
        use=("With very many clients that keep nothing, at one exchange per round.",),
        avoid=(
            "If clients differ a lot and you run to high accuracy: drift is dampened, not removed; see [Mime](mime.md).",
        ),
        call="fl.MimeLite(lr=1.0)",
        programs=("MimeLite.round", "MimeLite.lite", "Mime.next_momentum"),
        cost=Cost("2*d", "2*d", gradients="n + K*b"),
        theory_note="The papers behind `fl.theory` state no theorem about it; with β = 0 it is [FedAvg](fedavg.md).",
        presets=("mime-lite-mvr",),
    ),
    Entry(
        name="scaffold-m",
        title="SCAFFOLD-M",
        where="the box of SCAFFOLD-M",
        line="SCAFFOLD with momentum",
        idea="""SCAFFOLD whose local steps mix in the mean step of the last round, with weight 1 − β. The momentum is the server's, the
same for all clients, so it does not disturb the control variates; and it averages the noise of batches and of sampled
clients over rounds.""",
        picture=Picture(
            "One sample per step. SCAFFOLD is free of drift but not of noise; the momentum averages noise over rounds.",
            "fl.Scaffold(lr=0.05)", "fl.ScaffoldM(lr=0.05, beta=0.2)", problem="noisy", settings={"steps": 6, "batch_size": 1}, rounds=80,
        ),
        use=("Where SCAFFOLD helps but is noisy: small batches, small cohorts.",),
        avoid=(
            "If the download matters: it receives a third vector.",
            "With a small β from the first round on a steep problem: the momentum needs some rounds to fill, and a smaller lr.",
        ),
        call="fl.ScaffoldM(lr=1.0)",
        programs=("ScaffoldM.round", "ScaffoldM.local"),
        cost=Cost("2*d + 1", "3*d", "d"),
        theory_note="The papers behind `fl.theory` do not treat it; with β = 1 it is [SCAFFOLD](scaffold.md) II.",
    ),
)  # fmt: skip
