"""What a client keeps on its own disk: its states by the order they came from, the vectors that it holds and its
last reply. Every file is written under another name and renamed, so it is whole or absent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from fairlead.deploy.wire import START, framed, opened
from fairlead.errors import FairleadError

_TAG = re.compile(r"[0-9a-f]{32}")
_END = ".safetensors"


class ClientFolder:
    """The folder of one client and one run.

    A state counts only once the server says so: the server names the state to begin with in every order. So an
    upload that was lost on its way leaves no trace, and a server that goes back to an earlier round finds the
    states of that round.
    """

    def __init__(self, folder: Path, run: str) -> None:
        if not _TAG.fullmatch(run):
            raise FairleadError("the name of the run is not one that fairlead gives")
        self.folder = folder / run
        self.folder.mkdir(parents=True, exist_ok=True)

    # -- states ---------------------------------------------------------------------------------

    def state(self, tag: str) -> dict[str, Tensor]:
        """The vectors of a state; empty for the one that clients start with."""
        if tag == START:
            return {}
        try:
            return load(self._state(tag).read_bytes())
        except (FileNotFoundError, ValueError) as error:
            raise FairleadError(
                "this client does not have the state that the server counts on: restore its folder, or start "
                "a new run"
            ) from error

    def add_state(self, tag: str, vectors: dict[str, Tensor]) -> None:
        """Keep a state beside the others."""
        self._write(self._state(tag), vectors)

    def forget_states(self, but: Iterable[str]) -> None:
        """Delete the states that the server will never ask for."""
        kept = {f"{tag}{_END}" for tag in but}
        for path in self.folder.glob(f"*{_END}"):
            if _TAG.fullmatch(path.stem) and path.name not in kept:
                path.unlink(missing_ok=True)

    def _state(self, tag: str) -> Path:
        if not _TAG.fullmatch(tag):
            raise FairleadError("the name of a state is not one that fairlead gives")
        return self.folder / f"{tag}{_END}"

    # -- vectors --------------------------------------------------------------------------------

    def held(self, measuring: bool) -> dict[str, Tensor]:
        """The vectors of the last order that said to hold them; those of measures are apart."""
        try:
            return load(self._held(measuring).read_bytes())
        except FileNotFoundError:
            return {}

    def hold(self, vectors: dict[str, Tensor], measuring: bool) -> None:
        """Hold vectors instead of earlier ones."""
        self._write(self._held(measuring), vectors)

    def _held(self, measuring: bool) -> Path:
        return self.folder / f"held{'-measure' * measuring}{_END}"

    # -- the last reply -------------------------------------------------------------------------

    def last(self) -> tuple[tuple[int, int], str, bytes]:
        """The number and the tag of the last order that was answered, and the reply."""
        try:
            about, reply = opened((self.folder / "reply").read_bytes())
        except FileNotFoundError:
            return (-1, -1), START, b""
        return (about["number"][0], about["number"][1]), about["tag"], reply

    def answered(self, number: tuple[int, int], tag: str, reply: bytes) -> None:
        """Note the last reply, after everything else."""
        replaced(self.folder / "reply", framed({"number": number, "tag": tag}, reply))

    def _write(self, path: Path, vectors: dict[str, Tensor]) -> None:
        data = save(
            {
                n: t.detach().cpu().clone(memory_format=torch.contiguous_format)
                for n, t in vectors.items()
            }
        )
        replaced(path, data)


def replaced(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
