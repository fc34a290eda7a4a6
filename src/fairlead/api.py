"""The public names, imported together; `import fairlead as fl` gets them from here when one is first used."""

from fairlead import measure, schedules, theory, track
from fairlead.compress import QSGD, BFloat16, Compressor, ErrorFeedback, Identity, RandK, TopK
from fairlead.core.message import Message
from fairlead.core.method import Algorithm, Client, Cohort, Lasting, Replies, Step
from fairlead.core.records import Memory, Record, State, Upload
from fairlead.data import features, sources, splits
from fairlead.data.batches import Batches, Geometric
from fairlead.data.images import Images
from fairlead.data.sampling import AllFirst, Always, Everyone, Replay, Uniform, Weighted
from fairlead.engine.processes.distribute import Distributed
from fairlead.engine.simulate import Simulate
from fairlead.errors import Diverged, FairleadError
from fairlead.methods import (
    METHODS,
    PRESETS,
    Catalyst,
    DPFedAvg,
    ExtraStep,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedCOMGATE,
    FedDyn,
    FedExP,
    FedGLOMO,
    FedLOMO,
    FedNova,
    FedPAQ,
    FedProx,
    FedPVR,
    FedSGD,
    FedYogi,
    Mime,
    MimeLite,
    MinibatchSGD,
    MirrorDescent,
    MirrorProx,
    Scaffnew,
    Scaffold,
    ScaffoldM,
    ScaffoldS,
    aggregate,
    local,
)
from fairlead.methods.citations import cite
from fairlead.run import folder as runs
from fairlead.run.callbacks import Callback
from fairlead.run.checkpoint import Checkpoints
from fairlead.run.history import History
from fairlead.run.many import train_many
from fairlead.run.needs import needs
from fairlead.run.stopping import BestModel, EarlyStopping
from fairlead.run.train import Run, train
from fairlead.study.compare import Comparison, compare
from fairlead.study.diagnose import Diagnosis, diagnose
from fairlead.study.tuning import Tuning, tune
from fairlead.task import catalog as tasks
from fairlead.task import losses, models, problems
from fairlead.task.metrics import Metric, Whole
from fairlead.task.per_client import ClientMetrics, PerClient
from fairlead.task.saddle import SaddleTask
from fairlead.task.solve import minimize, saddle_point
from fairlead.task.task import Task
from fairlead.version import __version__

from fairlead import testing  # isort: skip: it uses everything else

__all__ = [
    "METHODS",
    "PRESETS",
    "QSGD",
    "Algorithm",
    "AllFirst",
    "Always",
    "BFloat16",
    "Batches",
    "BestModel",
    "Callback",
    "Catalyst",
    "Checkpoints",
    "Client",
    "ClientMetrics",
    "Cohort",
    "Comparison",
    "Compressor",
    "DPFedAvg",
    "Diagnosis",
    "Distributed",
    "Diverged",
    "EarlyStopping",
    "ErrorFeedback",
    "Everyone",
    "ExtraStep",
    "FairleadError",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedCOMGATE",
    "FedDyn",
    "FedExP",
    "FedGLOMO",
    "FedLOMO",
    "FedNova",
    "FedPAQ",
    "FedPVR",
    "FedProx",
    "FedSGD",
    "FedYogi",
    "Geometric",
    "History",
    "Identity",
    "Images",
    "Lasting",
    "Memory",
    "Message",
    "Metric",
    "Mime",
    "MimeLite",
    "MinibatchSGD",
    "MirrorDescent",
    "MirrorProx",
    "PerClient",
    "RandK",
    "Record",
    "Replay",
    "Replies",
    "Run",
    "SaddleTask",
    "Scaffnew",
    "Scaffold",
    "ScaffoldM",
    "ScaffoldS",
    "Simulate",
    "State",
    "Step",
    "Task",
    "TopK",
    "Tuning",
    "Uniform",
    "Upload",
    "Weighted",
    "Whole",
    "__version__",
    "aggregate",
    "cite",
    "compare",
    "diagnose",
    "features",
    "local",
    "losses",
    "measure",
    "minimize",
    "models",
    "needs",
    "problems",
    "runs",
    "saddle_point",
    "schedules",
    "sources",
    "splits",
    "tasks",
    "testing",
    "theory",
    "track",
    "train",
    "train_many",
    "tune",
]
