"""Which method, how many local steps and which step size, on a task at hand."""

from fairlead.study.diagnose.answers import Answer
from fairlead.study.diagnose.diagnosis import Diagnosis, diagnose
from fairlead.study.diagnose.link import Link

__all__ = ["Answer", "Diagnosis", "Link", "diagnose"]
