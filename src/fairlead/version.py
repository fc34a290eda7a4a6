"""The version of fairlead."""

__version__ = "0.1.0"
