"""Methods for saddle points."""

from handbook.entry import Cost, Entry, Picture

SADDLE = (
    Entry(
        name="mirror-descent",
        title="Mirror descent",
        where="§4",
        line="minibatch mirror descent; projected or entropic on a simplex",
        idea="""One step per round along the mean mapping G = (∇x f, −∇y f) of all clients at z: descent for one player, ascent for the
other. No client moves by itself, so nothing drifts. If y lives on a simplex, a step is projected, or multiplies the weights and normalizes
them, which suits probabilities.""",
        picture=Picture(
            "Two clients of a game whose mapping turns. FedAvg-S follows each client's own game for ten steps; mirror descent moves only "
            "along the mean mapping.",
            "fl.FedAvg(lr=0.1)", "fl.MirrorDescent(lr=0.3)", problem="game", settings={"steps": 10}, drawn=8,
            labels=("FedAvg-S", "mirror descent"),
        ),
        use=(
            "As the baseline for saddle problems, and on a simplex (`fl.problems.agnostic`), where local methods are refused.",
            "With `total=True` for the paper's framework (8), whose steps are τ times as long.",
        ),
        avoid=("On games that are nearly bilinear: plain descent turns around the solution; see [mirror-prox](mirror-prox.md).",),
        call="fl.MirrorDescent(lr=0.2)",
        programs=("MirrorDescent.round", "MirrorDescent.step", "MirrorDescent.mapped"),
        theorems=("scaffold_s_anchor",),
        theory_note="The theorem is about `fl.MirrorDescent(total=True)`, which sums the mappings of a round.",
        game=True,
        results=("saddle-fig2",),
    ),
    Entry(
        name="mirror-prox",
        title="Mirror-prox",
        where="§4",
        line="minibatch mirror-prox (extragradient)",
        idea="""Look before you step: a first step finds z_½, and the step that counts starts again at z and follows the mapping at
z_½. In a game that turns, the mapping at z points outwards along the circle and the one at z_½ points inwards, so mirror-prox converges
where descent spirals away. Each round has two exchanges.""",
        picture=Picture(
            "A nearly bilinear game. Descent circles outwards; mirror-prox, with the same step size, spirals in.",
            "fl.MirrorDescent(lr=0.5)", "fl.MirrorProx(lr=0.5)", problem="bilinear", settings={"steps": 1}, drawn=12,
            labels=("mirror descent", "mirror-prox"),
        ),
        use=("On games with weak curvature or none, and to high accuracy.",),
        avoid=("Where two exchanges per step are too many: local methods take τ steps for as much communication.",),
        call="fl.MirrorProx(lr=0.2)",
        programs=("MirrorProx.round", "MirrorDescent.step", "MirrorDescent.mapped"),
        cost=Cost("2*d", "2*d", gradients="2*K*b", exchanges=2),
        theory_note="The saddle-point paper quotes its rate, which `fl.theory.rates(\"saddle\", …)` evaluates.",
        game=True,
        results=("saddle-fig2",),
    ),
    Entry(
        name="extra-step",
        title="Extra Step",
        where="appendix A",
        line="FedAvg-S with a local extragradient step",
        idea="""FedAvg on a saddle task whose local steps look ahead as mirror-prox does: each step evaluates the client's mapping at a
trial point first, on the same batch. That cures the turning of the game inside a client. It does not cure drift: clients still head for
their own saddle points.""",
        picture=Picture(
            "A nearly bilinear game. FedAvg-S spirals outwards; with the extra step the clients turn inwards, and stop where their pulls "
            "balance after local steps, near z* and not at it.",
            "fl.FedAvg(lr=0.15)", "fl.ExtraStep(lr=0.15)", problem="bilinear", settings={"steps": 5}, drawn=8,
            labels=("FedAvg-S", "Extra Step"),
        ),
        use=("On games that turn, with similar clients.",),
        avoid=("If clients differ: see [SCAFFOLD-S](scaffold-s.md).",),
        call="fl.ExtraStep(lr=0.1)",
        programs=("ExtraStep.local_steps", "FedAvg.round"),
        cost=Cost(gradients="2*K*b"),
        theory_note="The saddle-point paper compares with it in its appendix A and states no theorem about it.",
        game=True,
        results=("saddle-extra",),
    ),
    Entry(
        name="scaffold-s",
        title="SCAFFOLD-S",
        where="Algorithm 2",
        line="local steps corrected at the last synchronized point",
        idea="""SCAFFOLD for saddle points, without client state: at the start of a round all clients compute their exact mapping at the common
point, and the mean comes back. A local step then follows G_i(z) − G_i(z̃) + G(z̃), both at the same sample: where the client's game
differs from the common one, the difference cancels to first order.""",
        picture=Picture(
            "The same two clients and ten local steps. FedAvg-S stops between the clients' saddle points; SCAFFOLD-S goes to the common one.",
            "fl.FedAvg(lr=0.1)", "fl.ScaffoldS(lr=0.1)", problem="game", settings={"steps": 10}, drawn=4,
            labels=("FedAvg-S", "SCAFFOLD-S"),
        ),
        use=(
            "On saddle problems whose clients differ: it converges linearly for any heterogeneity (Theorems 5 to 7).",
            "For minimization without client state: it is then SVRG's correction with local steps.",
        ),
        avoid=(
            "If full passes are dear: each round has one, and two mappings per step.",
            "On games that are badly conditioned: see [Catalyst](catalyst.md).",
        ),
        call="fl.ScaffoldS(lr=0.05)",
        programs=("ScaffoldS.round", "ScaffoldS.anchor", "ScaffoldS.local"),
        cost=Cost("2*d", "2*d", gradients="n + 2*K*b", exchanges=2),
        theorems=("scaffold_s", "scaffold_s_similar"),
        game=True,
        results=("saddle-fig1", "saddle-fig2", "saddle-table1"),
    ),
    Entry(
        name="catalyst",
        title="Catalyst",
        where="Algorithm 3",
        line="any method plus a proximal term around a moving centre",
        idea="""A badly conditioned game is solved as a sequence of well-conditioned ones: the inner method works on
f + θ/2·‖x − x̄‖² − θ/2·‖y − ȳ‖², whose solution is near the centre z̄ and easy to reach with large steps, and after some inner rounds the
centre moves there. Around [SCAFFOLD-S](scaffold-s.md) it is SCAFFOLD-Catalyst-S; it wraps any other method too.""",
        picture=Picture(
            "A nearly bilinear game and steps that are long for it. SCAFFOLD-S alone turns outwards; with θ = 1 around a moving centre the same "
            "steps go to z*.",
            "fl.ScaffoldS(lr=0.15)", "fl.Catalyst(fl.ScaffoldS(lr=0.15), theta=1.0, inner_rounds=3)", problem="bilinear",
            settings={"steps": 5}, drawn=8, labels=("SCAFFOLD-S", "SCAFFOLD-Catalyst-S"),
        ),
        use=(
            "On badly conditioned games; `theta=\"theory\"` takes θ = β − μ from the task's constants.",
            "With `extrapolation` around SCAFFOLD for accelerated minimization.",
        ),
        avoid=(
            "If β/μ is near 1: the detour over centres then only costs rounds.",
            "With a θ that is far too large: centres then move slowly.",
        ),
        call="fl.Catalyst(fl.ScaffoldS(lr=0.05), theta=1.0)",
        programs=("Catalyst.round", "_HeldClient.pulled"),
        cost=Cost("2*d", "2*d + d/5", gradients="n + 2*K*b", exchanges=2),
        theorems=("catalyst",),
        game=True,
        presets=("scaffold-catalyst-s", "scaffold-catalyst"),
        results=("saddle-fig1", "saddle-fig2"),
    ),
)  # fmt: skip
