"""What makes methods win or lose, measured on clients inside rounds."""

from fairlead.measure.base import Measure
from fairlead.measure.drift import ClientDrift, DriftDiversity

__all__ = ["ClientDrift", "DriftDiversity", "Measure"]
