"""Gradient descent, local steps, and local steps that are kept near the server's model or coded."""

from handbook.entry import Cost, Entry, Picture

AVERAGING = (
    Entry(
        name="fedsgd",
        title="FedSGD",
        where="§7",
        line="every client sends its full gradient at x",
        idea="""All clients compute the gradient of their whole data at the server's model, and the server takes one step
along the mean. This is gradient descent, spread over clients. Nothing drifts, because nobody moves before the server does; but
a round buys only one step.""",
        picture=Picture(
            "FedAvg's clients walk towards their own optima and their mean misses x*. FedSGD takes one short step per round, along "
            "the gradient of f itself.",
            "fl.FedAvg(lr=0.26)", "fl.FedSGD(lr=0.26)",
        ),
        use=(
            "As the baseline that any method with local steps has to beat per round; where clients differ most, many do not.",
            "Where computing is dear and rounds are cheap.",
            "To check a task: on a convex one it converges for every lr below 2/L, so if it does not, the task is at fault.",
        ),
        avoid=(
            "If rounds are what costs: methods with local steps make more progress per round on similar clients, and SCAFFOLD on others.",
            "If clients have too much data for a full pass per round: use minibatch SGD.",
        ),
        call="fl.FedSGD(lr=3.0)",
        programs=("FedSGD.round", "FedSGD.local", "FedSGD.gradient"),
        cost=Cost(gradients="n"),
        theory_note="Gradient descent on f: it needs lr < 2/L, and no assumption on how clients differ.",
    ),
    Entry(
        name="minibatch-sgd",
        title="Minibatch SGD",
        where="§3",
        line="the mean of a round's minibatch gradients, all at x",
        idea="""A client draws the batches of K local steps but evaluates all of them at the server's model, and sends
the mean. It does the same work as FedAvg per round and has no drift: the difference between the two methods is what local movement is
worth, or costs.""",
        picture=Picture(
            "The same batches, used in two ways: FedAvg moves after each of them and drifts; minibatch SGD takes all of them at x.",
            "fl.FedAvg(lr=0.26)", "fl.MinibatchSGD(lr=0.26)", problem="noisy", settings={"steps": 3, "batch_size": 1},
        ),
        use=(
            "As the fair baseline for local methods: equal batches, equal bits, no drift.",
            "Where clients differ so much that FedAvg's floor is above the accuracy you need.",
        ),
        avoid=("If clients are similar: local steps then make K times as much progress per round.",),
        call="fl.MinibatchSGD(lr=3.0)",
        programs=("MinibatchSGD.gradient", "FedSGD.round", "FedSGD.local"),
        theory_note="SGD with batches of S·K·b samples: it needs no assumption on how clients differ.",
    ),
    Entry(
        name="fedavg",
        title="FedAvg",
        where="Algorithm 1; Algorithm 2 of Karimireddy et al. 2020",
        line="local SGD, then average",
        idea="""Each client starts at the server's model, takes K steps of SGD on its own data, and the server averages where
they end. One round makes the progress of several steps for the communication of one. The price is client drift: between two averages
each client heads for its own optimum, and where clients differ the average stops short of the common one, at a distance that grows
with K, with the step size and with how much clients differ.""",
        picture=Picture(
            "FedSGD takes one step per round. FedAvg comes near x* in its first round, then is drawn to a point between the clients' optima "
            "and stays there.",
            "fl.FedSGD(lr=0.26)", "fl.FedAvg(lr=0.26)",
        ),
        use=(
            "On clients with similar data, or as long as its floor is below the accuracy you need.",
            "First: it costs least per round, keeps nothing on clients, and says by how much a correction can help.",
            "With `momentum`, `local=fl.local.Adam()` or a server optimizer, all of which it accepts.",
        ),
        avoid=(
            "If clients differ and you run to high accuracy: its error has a floor (Theorem V) that no number of rounds removes at a fixed "
            "step size, and none can go below G²/(μR²) (Theorem VI).",
            "If clients take very different numbers of steps: it then minimizes another objective; see [FedNova](fednova.md).",
        ),
        call="fl.FedAvg(lr=1.0)",
        programs=("FedAvg.round", "FedAvg.local_steps", "FedAvg.direction"),
        theorems=("fedavg", "fedavg_shadow", "fedavg_alpha"),
        presets=("fedavg-m", "fedavg-s"),
        results=("scaffold-fig3", "scaffold-lower", "drift-toy"),
    ),
    Entry(
        name="fedprox",
        title="FedProx",
        where="Algorithm 2",
        line="FedAvg with the term μ/2·‖y − x‖²",
        idea="""FedAvg with a spring: clients minimize f_i(y) + μ/2·‖y − x‖², so the further a client has walked from the server's
model, the harder it is pulled back. That shortens the drift and, with it, the progress. It does not change where the drift points to:
the fixed point is still not the optimum of f, only closer to it.""",
        picture=Picture(
            "The proximal term holds clients near the square they started from. The method stops closer to x*, but not at it.",
            "fl.FedAvg(lr=0.26)", "fl.FedProx(lr=0.26, mu=2.0)",
        ),
        use=(
            "Where FedAvg diverges because of long local work, and no state may be kept on clients.",
            "Where clients take very different numbers of steps: the term bounds how far the busiest can run away.",
        ),
        avoid=(
            "Instead of a smaller step size or fewer local steps, without trying those: μ trades progress for drift much as they do.",
            "If clients can keep a vector: [SCAFFOLD](scaffold.md) removes the drift that FedProx dampens.",
        ),
        call="fl.FedProx(lr=1.0, mu=1.0)",
        programs=("FedProx.direction", "FedAvg.round", "FedAvg.local_steps"),
        theory_note="The papers behind `fl.theory` use FedProx as a baseline and state no theorem about it.",
        results=("drift-prox",),
    ),
    Entry(
        name="fedpaq",
        title="FedPAQ",
        where="Algorithm 1",
        line="FedAvg with quantized steps",
        idea="""FedAvg whose clients round their step to a few levels before they send it, at random and without bias (QSGD). The
mean over clients is right on average, and the noise of rounding shrinks with the step itself. Only uploads are coded: they are
the scarce direction on most networks.""",
        picture=Picture(
            "A hundred parameters, seen in the first two; 32 bits per number sent, and 4. Rounding adds noise; drift is the same, "
            "and quantization does nothing about it. The curve is over what clients have sent.",
            "fl.FedAvg(lr=0.1)", "fl.FedPAQ(lr=0.1, compressor=fl.QSGD(4))", problem="wide",
        ),
        use=(
            "Where uploads are the bottleneck; with 2 bits per number they are some ten times smaller.",
            "With many clients per round, whose rounding errors average out.",
        ),
        avoid=(
            "If few clients answer per round: the variance of coding is divided by few; check `fl.measure.compression`.",
            "If clients differ: add a correction, as [FedCOMGATE](fedcomgate.md), or give SCAFFOLD a `compressor`.",
        ),
        call="fl.FedPAQ(lr=1.0, compressor=fl.QSGD(2))",
        programs=("FedAvg.round", "FedAvg.local_steps"),
        cost=Cost(up=None),
        theory_note="See `fl.theory.fedlomo` for local steps with compression; FedPAQ's own theorem assumes similar clients and is not in `fl.theory`.",
        presets=("fedpaq-m", "fedpaq-scm"),
        results=("glomo-fig1",),
    ),
    Entry(
        name="fednova",
        title="FedNova",
        where="§4",
        line="normalized averaging for uneven work",
        idea="""If one client takes twelve local steps and another two, FedAvg's mean is mostly the first one's opinion: it minimizes
Σ K_i f_i instead of Σ f_i. FedNova lets each client send its mean direction, the step divided by Σ_k η_k, averages those, and
multiplies with the mean length. More work then means a better direction, not more weight.""",
        picture=Picture(
            "Client 1 takes two steps, client 2 twelve. FedAvg goes to client 2's optimum; FedNova weighs both alike. It does not remove "
            "drift itself, so it stops near x*, not at it.",
            "fl.FedAvg(lr=0.05)", "fl.FedNova(lr=0.05)", settings={"steps": [2, 12]},
        ),
        use=(
            "If clients take different numbers of local steps, for example one epoch on unequal amounts of data.",
            "As FedAvg otherwise: with equal work it is FedAvg, to the last bit.",
        ),
        avoid=("As a correction of drift between clients that work equally: then it does nothing.",),
        call="fl.FedNova(lr=1.0)",
        programs=("FedNova.round", "FedNova.local"),
        cost=Cost(up="d + 1"),
        theory_note="With equal steps it is FedAvg, whose theorems then apply: see [FedAvg](fedavg.md).",
    ),
    Entry(
        name="dp-fedavg",
        title="DP-FedAvg",
        where="Algorithm 1",
        line="clipped client steps plus noise, for differential privacy",
        idea="""FedAvg in which no single client can matter much: every client's step is shortened to a norm C, and the server adds
normal noise of standard deviation zC/S to their mean. Whoever sees all models of the run cannot tell, up to (ε, δ), whether a given
client took part.""",
        picture=Picture(
            "Privacy is paid for with noise: the steps are clipped to C = 1.5, and the server adds z = 1 times that to their sum.",
            "fl.FedAvg(lr=0.1)", "fl.DPFedAvg(lr=0.1, norm=1.5, noise=1.0)", rounds=60,
        ),
        use=(
            "If the published model must be differentially private with respect to whole clients.",
            "With large cohorts: the noise per round falls as 1/S.",
        ),
        avoid=(
            "With models that have BatchNorm layers: their statistics would leave without noise, so they are refused.",
            "To protect clients from the server, which sees each upload: that takes secure aggregation, which is not here.",
        ),
        call="fl.DPFedAvg(lr=1.0, norm=1.0, noise=1.0)",
        programs=("DPFedAvg.combine", "DPFedAvg.epsilon", "FedAvg.round"),
        theory_note="`method.epsilon(…)` states its privacy; the papers behind `fl.theory` state no convergence theorem for it.",
        results=("scaffold-privacy",),
    ),
)  # fmt: skip
