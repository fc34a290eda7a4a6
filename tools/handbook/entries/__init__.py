"""The methods' entries, in the order of the index."""

from handbook.entries.averaging import AVERAGING
from handbook.entries.correcting import CORRECTING
from handbook.entries.momentum import MOMENTUM
from handbook.entries.saddle import SADDLE
from handbook.entries.server import SERVER

ENTRIES = {entry.name: entry for entry in (*AVERAGING, *CORRECTING, *MOMENTUM, *SERVER, *SADDLE)}
