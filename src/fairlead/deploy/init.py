"""A new project for a federation: settings, data, apps for Flower, scripts for certificates and keys, and a compose file."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from fairlead.errors import FairleadError

_END = ".txt"
_CLIENT = Template("""\
  client-$number:
    build: .
    command: ["scripts/client.sh", "$number", "server:8000"]
    depends_on: [server]
    volumes:
      - ./certificates/ca.crt:/federation/certificates/ca.crt:ro
      - ./keys/client-$number:/federation/keys/client-$number:ro
      - ./state/client-$number:/federation/state/client-$number
""")
"""A client in the compose file."""


def write_project(folder: Path, clients: int) -> list[Path]:
    """Write a project that runs as it is, on made-up data; returns its files."""
    if clients < 1:
        raise FairleadError(f"clients is {clients}: must be at least 1")
    if folder.exists() and any(folder.iterdir()):
        raise FairleadError(f"{folder} is not empty: give a new folder")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "federation"
    services = "".join(_CLIENT.substitute(number=k) for k in range(clients))
    source = Path(__file__).parent / "project"
    written = []
    for path in sorted(source.rglob(f"*{_END}")):
        target = folder / str(path.relative_to(source)).removesuffix(_END)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = Template(path.read_text(encoding="utf-8"))
        filled = text.substitute(name=name, clients=clients, client_services=services)
        target.write_text(filled.rstrip("\n") + "\n", encoding="utf-8")
        if target.suffix == ".sh":
            target.chmod(0o755)
        written.append(target)
    return written
