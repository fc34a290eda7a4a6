"""The report as one self-contained HTML file: nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fairlead.errors import FairleadError

SCRIPTS = ("tags", "numbers", "series", "save", "curves", "goal", "maps", "steps", "clients", "measures",
           "words", "page")  # fmt: skip


def render(data: Mapping[str, Any], *, live: bool = False, tag: str = "") -> str:
    """The self-contained page that shows `data`.

    live: whether the page polls its server for newer data; tag: the ETag of `data` there.

    >>> page = render({"title": "Four methods on digits"})
    >>> "<title>Four methods on digits</title>" in page, "default-src 'none'" in page
    (True, True)
    """
    style, script = _part("page.css"), "".join(_part(f"{name}.js") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}}})();'
    policy = [
        "default-src 'none'", f"script-src {_hash(script)}", f"style-src {_hash(style)}",
        "img-src data:", "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    return Template(_part("page.html")).substitute(
        live="yes" if live else "no",
        tag=escape(tag),
        policy="; ".join([*policy, "connect-src 'self'"] if live else policy),
        title=escape(str(data.get("title") or "fairlead").encode("utf-8", "replace").decode()),
        style=style,
        data=to_json(data).replace("<", "\\u003c"),
        script=script,
    )


def write(data: Mapping[str, Any], path: str | Path) -> Path:
    """Write the page to a file, atomically."""
    path, text = Path(path), render(data)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(text.encode("utf-8"))
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        reason = error.strerror or error
        raise FairleadError(f"the report cannot be written to {path}: {reason}") from error
    return path


def to_json(data: Any) -> str:
    """Data as ASCII JSON, with null for non-finite numbers.

    >>> to_json({"loss": [0.5, float("nan")], "folder": Path("out")})
    '{"loss":[0.5,null],"folder":"out"}'
    """
    try:  # most data are finite: avoid walking millions of numbers in Python
        return _dump(data)
    except (TypeError, ValueError):
        return _dump(_clean(data))


def _dump(data: Any) -> str:
    return json.dumps(data, allow_nan=False, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Arrays as lists, other objects as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _clean(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _clean(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _clean(value.tolist()) if hasattr(value, "tolist") else value


def _hash(text: str) -> str:
    """The hash by which a content security policy allows a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _part(name: str) -> str:
    return files("fairlead.report").joinpath("page", name).read_text(encoding="utf-8")


def stylesheet() -> str:
    """The style of the page, for other pages that should look like it."""
    return _part("page.css")
