"""How methods, models and their settings are written on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairlead.errors import FairleadError

OWN_FILE = re.compile(r"(.+\.py):(.+)")


def own_file(text: str) -> tuple[Path, str] | None:
    """File and name in my.py:MyMethod; None for other names.

    >>> own_file("my.py:Net"), own_file("mlp:600x600")
    ((PosixPath('my.py'), 'Net'), None)
    """
    found = OWN_FILE.fullmatch(text)
    return None if found is None else (Path(found[1]).expanduser(), found[2])


def absolute(text: str) -> str:
    """The same, with the file's absolute path.

    >>> absolute("/tmp/my.py:Net"), absolute("fedavg")
    ('/tmp/my.py:Net', 'fedavg')
    """
    found = own_file(text)
    return text if found is None else f"{found[0].resolve()}:{found[1]}"


def same_name(name: str, known: Iterable[str]) -> str:
    """The known name that is written like this, in any case, with or without hyphens.

    >>> same_name("SCAFFOLD", ["scaffold"]), same_name("MimeLite", ["mime-lite"]), same_name("x", [])
    ('scaffold', 'mime-lite', 'x')
    """
    plain = {re.sub("[-_]", "", key).lower(): key for key in known}
    return plain.get(re.sub("[-_]", "", name).lower(), name)


def each_method(given: str | list[Any]) -> list[str]:
    """The methods of a comma-separated list, each with its settings.

    >>> each_method("fedavg,fedavg:momentum=0.9,server_lr=2,scaffold")
    ['fedavg', 'fedavg:momentum=0.9,server_lr=2', 'scaffold']
    """
    if isinstance(given, list):
        return [str(text) for text in given]
    found: list[str] = []
    for part in filter(None, (word.strip() for word in given.split(","))):
        if (
            found and "=" in part and ":" not in part.partition("=")[0]
        ):  # the last one's next setting
            found[-1] += f",{part}" if "=" in found[-1] else f":{part}"
        else:
            found.append(part)
    return found


def name_and_settings(method: str) -> tuple[str, dict[str, Any]]:
    """A method's name, and its own settings after a colon.

    >>> name_and_settings("fedavg:momentum=0.9,compressor=qsgd:2"), name_and_settings("my.py:Mine")
    (('fedavg', {'momentum': 0.9, 'compressor': 'qsgd:2'}), ('my.py:Mine', {}))
    """
    head, equals, _ = method.partition("=")
    name, colon, _ = head.rpartition(":")
    if equals and colon and name:
        return name, pairs(method[len(name) + 1 :])
    if equals or (":" in method and own_file(method) is None):
        raise FairleadError(
            f"cannot parse the method '{method}': write fedavg:momentum=0.9, or my.py:MyMethod"
        )
    return method, {}


def pairs(text: str | None) -> dict[str, Any]:
    """Settings written as comma-separated name=value pairs.

    >>> pairs("s=10,scaling=printed")
    {'s': 10, 'scaling': 'printed'}
    """
    found: dict[str, Any] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise FairleadError(f"cannot parse '{part}': write name=value")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found
