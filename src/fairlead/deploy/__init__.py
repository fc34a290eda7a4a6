"""Real federations: the same methods across machines that keep their data.

server (`Server`)                                         client (`LocalClient`)
method.round ── Request ─▶ `Remote` ── Order ──▶ transport ──▶ program on its own task
Answer ◀── checked, counted ◀── Reply ◀──────── transport ◀── upload; state on its disk
"""

from fairlead.deploy.agreement import Agreement
from fairlead.deploy.client import LocalClient
from fairlead.deploy.remote import Patience
from fairlead.deploy.serve import Server
from fairlead.deploy.transport import InProcess, Parcel, Transport

__all__ = [
    "Agreement",
    "InProcess",
    "LocalClient",
    "Parcel",
    "Patience",
    "Server",
    "Transport",
]
