"""Methods that correct client drift."""

from handbook.entry import Cost, Entry, Picture

CORRECTING = (
    Entry(
        name="scaffold",
        title="SCAFFOLD",
        where="Algorithm 1",
        line="local SGD with control variates",
        idea="""Each client remembers c_i, an estimate of its own gradient, and the server c, their mean. In a local step the
client follows g_i(y) − c_i + c: it takes away where it would go by itself and adds where all go together. If c_i and c were exact,
the K local steps of all clients would be K steps of gradient descent on f. They cost one vector more each way.""",
        picture=Picture(
            "The same clients, steps and step size. FedAvg's clients head for their own optima in every round; SCAFFOLD's part less from round to round, and the server ends at x*.",
            "fl.FedAvg(lr=0.26)", "fl.Scaffold(lr=0.26, warm_start=True)",
        ),
        use=(
            "If clients differ and come back: it needs c_i from an earlier round.",
            "For high accuracy: its error has no floor from heterogeneity (Theorem VII).",
            "With many local steps: they save rounds up to about K = β/δ (Theorem VIII); `fl.theory.best_local_steps` says how many.",
        ),
        avoid=(
            "If each client takes part once or twice in all: c_i is then zero or stale; see [MimeLite](mime-lite.md), which keeps nothing.",
            "If bits matter more than rounds and clients are similar: a round costs twice FedAvg's.",
            "With momentum in local steps: (x − y)/(Kη) would not be the mean gradient; see [SCAFFOLD-M](scaffold-m.md).",
        ),
        call="fl.Scaffold(lr=1.0)",
        programs=("Scaffold.round", "Scaffold.local_steps"),
        cost=Cost("2*d", "2*d", "d"),
        theorems=("scaffold", "scaffold_nonconvex"),
        results=("scaffold-fig3", "scaffold-kstar", "scaffold-sampling", "scaffold-table3"),
    ),
    Entry(
        name="fedpvr",
        title="FedPVR",
        where="Algorithm I",
        line="SCAFFOLD on the last layers, SGD on the others",
        idea="""In deep networks clients disagree mostly in the last layers, the classifier. So FedPVR corrects only those, with
SCAFFOLD's control variates, and leaves the others to plain SGD, where momentum is allowed. Control variates are sent and kept for the
corrected part only, a few per cent of a large network.""",
        picture=Picture(
            "Corrected is the vertical direction only: clients still part sideways, but no longer up and down.",
            "fl.FedAvg(lr=0.26)", "fl.FedPVR(lr=0.26, layers=torch.tensor([0, 1]), warm_start=True)",
        ),
        use=(
            "On deep networks whose clients hold different classes, at nearly FedAvg's cost.",
            "With momentum on the other layers, as in the paper's experiments.",
        ),
        avoid=(
            "On models with one layer: it is then SCAFFOLD (all layers) or FedAvg (none).",
            "If the other layers differ as well: their heterogeneity remains as a floor (Theorem II); `drift=True` shows drift per layer.",
        ),
        call="fl.FedPVR(lr=0.3, layers=-1)",
        programs=("FedPVR.round", "FedPVR.local_steps"),
        cost=Cost("d + p", "d + p", "p"),
        theorems=("fedpvr",),
        theory_note="The model of the demo has one layer, so FedPVR corrects all of it and ζ_(1−p) = 0.",
        model="mlp",
        results=("pvr-table2", "pvr-figC1"),
    ),
    Entry(
        name="feddyn",
        title="FedDyn",
        where="Algorithm 1",
        line="dynamic regularization",
        idea="""Each client minimizes f_i(y) − ⟨g_i, y⟩ + α/2·‖y − x‖², where g_i sums up how far it was pulled back in earlier rounds. At
a common fixed point g_i = ∇f_i(x), so the clients' own gradients cancel and x is stationary for f. Only the model travels; the
correction is built on each side from what both have seen.""",
        picture=Picture(
            "The linear term turns each client's objective until all of them have their minimum at x*.",
            "fl.FedAvg(lr=0.26)", "fl.FedDyn(lr=0.26, alpha=1.0)", rounds=60,
        ),
        use=(
            "If clients differ and bits matter: it corrects drift with one vector each way.",
            "Where local problems are solved nearly to the end: its theory assumes that they are.",
        ),
        avoid=(
            "With few local steps or a small α: the server's step h/α then overshoots; raise α first.",
            "If clients rarely come back: g_i is stale, as c_i of SCAFFOLD is.",
        ),
        call="fl.FedDyn(lr=0.3, alpha=1.0)",
        programs=("FedDyn.round", "FedDyn.local_steps"),
        cost=Cost(kept="d"),
        theory_note="The papers behind `fl.theory` do not treat it.",
    ),
    Entry(
        name="scaffnew",
        title="Scaffnew",
        where="Algorithm 2",
        line="ProxSkip: local steps with shifts",
        idea="""SCAFFOLD's correction in the form in which local steps provably save rounds: each client has a shift h_i, steps along
g_i(y) − h_i, and after the average is known moves h_i by how far the average is from where the client ended. With a random number of
local steps, the number of rounds falls from κ to √κ.""",
        picture=Picture(
            "After a few rounds the shifts hold the clients' gradients at x*, and their paths fall together.",
            "fl.FedAvg(lr=0.26)", "fl.Scaffnew(lr=0.26)",
        ),
        use=(
            "If all clients take part in every round and the problem is ill-conditioned and convex.",
            "With `steps=fl.Geometric(p)` and `p=p`, which its theory is about.",
        ),
        avoid=(
            "With sampled clients: the theory assumes all of them, and SCAFFOLD handles sampling.",
            "If an exchange is dear: it has two per round.",
        ),
        call="fl.Scaffnew(lr=1.0)",
        programs=("Scaffnew.round", "Scaffnew.local", "Scaffnew.settle"),
        cost=Cost("d + 1", "2*d + 1", "2*d", exchanges=2),
        theory_note="The papers behind `fl.theory` do not treat it; with a fixed K and all clients it is SCAFFOLD II, whose theorems apply: see [SCAFFOLD](scaffold.md).",
    ),
    Entry(
        name="fedcomgate",
        title="FedCOMGATE",
        where="the box of FedCOMGATE",
        line="gradient tracking with compressed messages",
        idea="""SCAFFOLD's correction for coded uploads: the server returns the mean of the coded directions, and each client moves its
tracking term by how its own coded direction differs from that mean. Since both are the coded ones, the terms sum to zero whatever the
code, and one coded vector up is enough for the step and the correction.""",
        picture=Picture(
            "Uploads of 4 bits per number for both. FedPAQ keeps its drift; FedCOMGATE's tracking terms take it away, and as directions stop "
            "changing so does the noise that matters.",
            "fl.FedPAQ(lr=0.1, compressor=fl.QSGD(4))", "fl.FedCOMGATE(lr=0.1, compressor=fl.QSGD(4))", problem="wide",
        ),
        use=(
            "If uploads must be small and clients differ: it needs one coded vector, where SCAFFOLD sends two.",
        ),
        avoid=(
            "With biased compressors such as top-k, which it refuses.",
            "If few clients take part per round: its analysis assumes all.",
        ),
        call="fl.FedCOMGATE(lr=1.0)",
        programs=("FedCOMGATE.round", "FedCOMGATE.local", "FedCOMGATE.track"),
        cost=Cost("d + 1", "2*d", "2*d", exchanges=2),
        theory_note="The papers behind `fl.theory` use it as a baseline; without compression and with all clients it is SCAFFOLD II: see [SCAFFOLD](scaffold.md).",
        results=("glomo-fig1",),
    ),
)  # fmt: skip
