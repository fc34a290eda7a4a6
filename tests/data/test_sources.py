"""Data sets by name: found, downloaded, refused. The only server is one on this machine."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_formats import (
    FINE,
    IMAGES,
    LABELS,
    LINE,
    PIXELS,
    cifar_bytes,
    emnist_files,
    idx,
    leaf_json,
    npz,
    tar,
    zipped,
)

from fairlead import FairleadError
from fairlead.data import fetch, formats, sources
from fairlead.data.sources import SOURCES, Dataset, Source
from fairlead.task.catalog import make_task

ROWS = {"a9a": b"+1 1:1 123:1 \n-1 \n", "a9a.t": b"-1 7:1 \n"}
MNIST = {
    f"{part}-{kind}-ubyte.gz": gzip.compress(idx(array))
    for part, n in (("train", 6), ("t10k", 2))
    for kind, array in (("images-idx3", IMAGES[:n]), ("labels-idx1", LABELS[:n] % 10))
}


def sha256(data: bytes) -> str:
    """A checksum as the registry writes it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Sends files under /whole/, half of them under /cut/ and /short/, others under /wrong/."""

    files: dict[str, bytes]
    asked: list[str]

    def url(self, way: str) -> str:
        """Where it offers files in one of these ways."""
        return f"http://127.0.0.1:{self.server_address[1]}/{way}"


class Answer(BaseHTTPRequestHandler):
    """One request."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        _, way, name = self.path.split("/")
        if way == "gone":
            self.send_error(404)
            return
        data = server.files[name] if way != "wrong" else b"<html>sign in</html>"
        self.send_response(200)
        if way != "short":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if way in ("cut", "short") else data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own for every test."""
    with Server(("127.0.0.1", 0), Answer) as running:
        running.files, running.asked = {}, []
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no folder, no proxy: the cache's folder of data."""
    monkeypatch.setenv("FAIRLEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FAIRLEAD_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache" / "data"


def offer(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    files: dict[str, bytes],
    *bases: str,
    known: bool = True,
    **changes: Any,
) -> Source:
    """Put small files in the place of a set's official ones."""
    source = SOURCES[name]
    small = tuple(
        replace(
            file,
            urls=tuple(f"{base}/{file.name}" for base in bases),
            checksum=sha256(files[file.name]) if known else None,
        )
        for file in source.files
    )
    changed = replace(source, files=small, **changes)
    monkeypatch.setitem(SOURCES, name, changed)
    return changed


def put(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def everything(folder: Path) -> list[str]:
    """All files below a folder."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def small_a9a(monkeypatch: pytest.MonkeyPatch, *bases: str, known: bool = True) -> None:
    """a9a with three rows."""
    read = partial(formats.read_libsvm_set, features=123, rows=(2, 1))
    source = offer(monkeypatch, "a9a", ROWS, *bases, known=known, read=read)
    files = tuple(
        replace(file, verify=partial(formats.read_libsvm, features=123, rows=rows))
        for file, rows in zip(source.files, (2, 1), strict=True)
    )
    monkeypatch.setitem(SOURCES, "a9a", replace(source, files=files))


# What is found where.


@pytest.mark.parametrize("sub", ["mnist", "MNIST/raw", "."])
def test_mnist_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sub: str) -> None:
    offer(monkeypatch, "mnist", MNIST)
    put(tmp_path / sub, MNIST)
    found = sources.load("mnist", tmp_path)
    assert torch.equal(found.x, torch.tensor(IMAGES[:, None]))
    assert torch.equal(found.y, torch.tensor(LABELS % 10, dtype=torch.int64))
    assert found.x_test.shape == (2, 1, 28, 28)


def test_plain_files_only_in_a_folder_of_their_own(tmp_path: Path) -> None:
    plain = {name.removesuffix(".gz"): gzip.decompress(data) for name, data in MNIST.items()}
    put(tmp_path / "fashion-mnist", plain)
    put(tmp_path, plain)
    assert len(sources.load("fashion_mnist", tmp_path).x) == 6
    assert {row.name: row.where for row in sources.listing(tmp_path)}["mnist"] == "not found"


def test_flat_files_of_another_set_are_not_taken(tmp_path: Path) -> None:
    put(tmp_path, MNIST)
    where = {row.name: row.where for row in sources.listing(tmp_path)}
    assert where["mnist"] == where["fashion-mnist"] == "not found"


@pytest.mark.parametrize(
    "name", ["fashion-mnist.npz", "fashion_mnist.npz", "fashion-mnist/fashion_mnist.npz"]
)
def test_npz_under_its_names(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = npz(x_train=IMAGES, y_train=LABELS % 10, x_test=IMAGES[:1], y_test=LABELS[:1])
    put((tmp_path / name).parent, {Path(name).name: arrays})
    monkeypatch.setenv("FAIRLEAD_DATA", str(tmp_path))
    found = sources.load("fashion-mnist")
    assert found.describe() == (
        "fashion-mnist: 6 + 1 samples of 1 × 28 × 28 uint8 numbers, 10 classes"
    )
    assert sources.get("fashion-mnist") == [tmp_path / name]


def test_emnist_parts_share_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {**emnist_files("letters", IMAGES, LABELS), **emnist_files("byclass", IMAGES, LABELS)}
    files = {"gzip.zip": zipped(members)}
    for name in ("emnist-letters", "emnist-byclass"):
        offer(monkeypatch, name, files)
    folder = put(tmp_path / "emnist", files).parent
    letters, byclass = (sources.load(f"emnist-{p}", folder) for p in ("letters", "byclass"))
    assert torch.equal(letters.y, byclass.y - 1)
    assert torch.equal(letters.x, torch.tensor(IMAGES[:, None]))
    assert torch.equal(letters.x, byclass.x)
    assert letters.x.is_contiguous()


def test_cifar_archive_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "cifar-100-binary.tar.gz": tar(
            {
                f"cifar-100-binary/{n}.bin": cifar_bytes([0, 1, 2, 3], FINE)
                for n in ("train", "test")
            }
        )
    }
    read: Any = SOURCES["cifar100"].read
    small = partial(formats.read_cifar, **{**read.keywords, "records": (4, 4)})
    offer(monkeypatch, "cifar100", files, read=small)
    found = sources.load("cifar100", put(tmp_path / "a", files))
    assert torch.equal(found.x, torch.tensor(PIXELS))
    bins = {f"{n}.bin": cifar_bytes([0, 1, 2, 3], FINE) for n in ("train", "test")}
    put(tmp_path / "b" / "cifar100" / "cifar-100-binary", bins)
    assert torch.equal(sources.load("cifar100", tmp_path / "b").x, found.x)


def test_leaf_sets_keep_their_clients(tmp_path: Path) -> None:
    image = [[1.0] * 784]
    for part in ("train", "test"):
        put(tmp_path / "femnist" / part, {"a.json": leaf_json({"w7": image * 2, "w2": image}, {"w7": [1, 2], "w2": [3]})})  # fmt: skip
        put(tmp_path / "shakespeare" / "data" / part, {"a.json": leaf_json({"LEAR": [LINE]}, {"LEAR": ["?"]})})  # fmt: skip
    found = sources.load("femnist", tmp_path)
    assert found.groups is not None
    assert found.groups.tolist() == [1, 1, 0]
    assert found.group_names == ("w2", "w7")
    assert found.describe().endswith("4 classes, 2 clients")
    text = sources.load("shakespeare", tmp_path)
    assert (text.x.dtype, text.x.shape, text.y.dtype) == (torch.uint8, (1, 80), torch.int64)
    told = sources.check("femnist", tmp_path)
    assert told[0].endswith("train has no published checksum to compare")
    assert "(published: 805,263 samples)" in told[-1]


def test_signs_are_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_a9a(monkeypatch)
    found = sources.load("a9a", put(tmp_path, ROWS))
    assert found.x.dtype == found.y.dtype == torch.float32
    assert found.y.tolist() == [1, -1]
    assert found.classes == 2
    packed = put(tmp_path / "packed", {f"{k}.gz": gzip.compress(v) for k, v in ROWS.items()})
    assert torch.equal(sources.load("a9a", packed).x, found.x)


def test_a_set_without_test_part_gives_up_a_tenth(tmp_path: Path) -> None:
    x = np.zeros((50, 300), np.float32)
    x[:, 0] = np.arange(50)
    y = np.where(np.arange(50) % 3, -1, 1).astype(np.int8)
    put(tmp_path, {"w8a.npz": npz(x_train=x, y_train=y), "mine.npz": npz(x_train=x, y_train=y, x_test=x[:0], y_test=y[:0], writer_train=np.arange(50))})  # fmt: skip
    found, again = sources.load("w8a", tmp_path), sources.load("w8a", tmp_path)
    assert (len(found.x), len(found.x_test)) == (45, 5)
    assert torch.equal(found.x_test, again.x_test)
    assert sorted(torch.cat([found.x, found.x_test])[:, 0].tolist()) == list(range(50))
    mine = sources.load("mine", tmp_path)
    assert mine.groups is not None
    assert mine.groups_test is not None
    assert torch.equal(mine.groups_test.float(), mine.x_test[:, 0])
    assert torch.equal(mine.groups.float(), mine.x[:, 0])


def femnist_with_extra(folder: Path) -> None:
    """Two writers and three few-shot ones; labels 0–9 are digits. A sample's first pixel is its number."""
    x = np.zeros((30, 28, 28), np.uint8)
    x[:, 0, 0] = np.arange(30)
    y = np.r_[np.arange(8), 10, 61, np.arange(2), 11, 12, 61, np.arange(9), 20, 30, 0, 1, 2, 3]
    parts = {
        "x_train": x[:10], "y_train": y[:10], "writer_train": np.arange(10) % 2,
        "x_test": x[10:15], "y_test": y[10:15], "writer_test": np.arange(5) % 2,
        "x_extra": x[15:], "y_extra": y[15:], "writer_extra": np.arange(15) % 3,
        "writer_ids": np.array(["a", "b"]), "extra_writer_ids": np.array(["c", "d", "e"]),
        "writer_source": np.array(["t", "u"]), "extra_source": np.array(["t", "t", "u"]),  # not ours
    }  # fmt: skip
    put(folder, {"femnist.npz": npz(**parts)})


def test_extra_clients_are_clients_of_their_own(tmp_path: Path) -> None:
    femnist_with_extra(tmp_path)
    plain, more = (sources.load("femnist", tmp_path, extra=extra) for extra in (False, True))
    assert plain.x[:, 0, 0, 0].tolist() == [*range(10)]
    assert more.x[:, 0, 0, 0].tolist() == [*range(10), *range(15, 30)]
    assert more.x.shape == (25, 1, 28, 28)
    assert more.group_names == ("a", "b", "c", "d", "e")
    assert more.groups is not None
    assert more.groups.tolist() == [0, 1] * 5 + [2, 3, 4] * 5
    assert torch.equal(plain.x_test, more.x_test)
    assert more.describe().endswith("62 classes, 5 clients")
    with pytest.raises(FairleadError, match="digits has no extra clients here"):
        sources.load("digits", extra=True)
    put(tmp_path, {"mine.npz": npz(x_train=np.zeros((4, 2)), y_train=np.arange(4),
                                   x_extra=np.zeros((4, 3)), y_extra=np.arange(4))})  # fmt: skip
    with pytest.raises(FairleadError, match="x_extra of another shape"):
        sources.load("mine", tmp_path, extra=True)


def test_half_digits_are_as_many_as_letters_in_both_parts(tmp_path: Path) -> None:
    femnist_with_extra(tmp_path)
    found = sources.load("femnist", tmp_path, extra=True).half_digits()
    assert found.name == "femnist, half digits"
    for y in (found.y, found.y_test):
        assert int((y < 10).sum()) <= int((y >= 10).sum())
    assert (found.y >= 10).sum() == (found.y < 10).sum() == 4  # all letters
    assert found.y_test.tolist() == [0, 1, 11, 12, 61]  # fewer digits than letters stay
    assert (found.x[:, 0, 0, 0].diff() > 0).all()
    assert found.groups is not None
    assert len(found.groups) == len(found.x) == 8
    again = sources.load("femnist", tmp_path, extra=True).half_digits()
    assert torch.equal(found.x, again.x)
    with pytest.raises(FairleadError, match="digits has no letters"):
        sources.load("digits").half_digits()


def test_the_femnist_task_with_extra_writers_and_half_digits(tmp_path: Path) -> None:
    femnist_with_extra(tmp_path)
    common = {"split": "by-id", "model": "softmax", "data": str(tmp_path)}
    assert make_task("femnist", common, {}).clients == 2
    task = make_task("femnist", common, {"extra": True, "resample": "byclass"})
    assert len(task.data[0]) == 8
    with pytest.raises(FairleadError, match="no way to resample 'letters'"):
        make_task("femnist", common, {"resample": "letters"})


def test_own_sets(tmp_path: Path) -> None:
    put(tmp_path, {"mine.npz": npz(x_train=PIXELS, y_train=FINE, x_test=PIXELS, y_test=FINE)})
    assert sources.load("mine", tmp_path).x.shape == (4, 3, 32, 32)
    assert sources.load("mine", tmp_path).classes == 100
    put(tmp_path, {"odd.npz": npz(x_train=PIXELS, y_train=np.array(["a"] * 4))})
    with pytest.raises(
        FairleadError, match="must hold numeric samples with one numeric label each"
    ):
        sources.load("odd", tmp_path)


@pytest.mark.parametrize(
    ("name", "arrays", "said"),
    [
        ("mnist", {"x_train": PIXELS, "y_train": FINE % 10}, "it is a different data set"),
        ("mnist", {"x_train": IMAGES / 255, "y_train": LABELS % 10}, "type float64"),
        ("mnist", {"x_train": IMAGES, "y_train": LABELS}, "holds the label 26"),
        ("mnist", {"x_train": IMAGES, "y_train": LABELS % 10 / 1}, "save them as integers"),
        ("a9a", {"x_train": np.zeros((2, 123)), "y_train": np.array([0, 1])}, "−1 and \\+1"),
        (
            "a9a",
            {"x_train": np.zeros((0, 123)), "y_train": np.zeros(0)},
            "must hold numeric samples",
        ),
    ],
)
def test_an_npz_of_another_set(tmp_path: Path, name: str, arrays: Any, said: str) -> None:
    put(tmp_path, {f"{name}.npz": npz(**arrays)})
    with pytest.raises(FairleadError, match=said):
        sources.load(name, tmp_path)


def test_folders_are_not_taken_for_files(tmp_path: Path, nowhere: Path) -> None:
    for folder in (tmp_path / "data", nowhere):
        (folder / "w8a").mkdir(parents=True)
        (folder / "a9a" / "a9a").mkdir(parents=True)
    where = {row.name: row.where for row in sources.listing(tmp_path / "data")}
    assert where["w8a"] == where["a9a"] == "not found"
    with pytest.raises(FairleadError, match="cannot be read"):
        fetch.matches(nowhere, sha256(b""))


# What the command line shows.


def test_listing_says_where(tmp_path: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_a9a(monkeypatch)
    put(nowhere / "a9a", ROWS)
    put(tmp_path / "mine", {"mnist.npz": npz(x_train=IMAGES, y_train=LABELS)})
    where = {row.name: row.where for row in sources.listing(tmp_path / "mine")}
    assert where.keys() == SOURCES.keys()
    assert where["digits"] == "embedded"
    assert where["a9a"] == "cache"
    assert where["mnist"] == str(tmp_path / "mine")
    assert where["cifar10"] == "not found"


def test_check_compares_and_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_a9a(monkeypatch)
    put(tmp_path, ROWS)
    told = sources.check("a9a", tmp_path)
    assert told[0] == f"{tmp_path / 'a9a'} has the published checksum {sha256(ROWS['a9a'])}"
    assert told[-1].startswith("a9a: 2 + 1 samples of 123 float32 numbers, 2 classes")
    put(tmp_path, {"a9a.t": b"+1 7:1 \n"})
    for call in (sources.check, sources.load, sources.get):
        with pytest.raises(FairleadError, match=r"a9a.t is damaged or a different file"):
            call("a9a", tmp_path)


@pytest.mark.parametrize("name", [n for n in SOURCES if n != "digits"])
def test_a_missing_set_says_how_to_get_it(name: str) -> None:
    with pytest.raises(FairleadError, match=f"{name} was not found: .*set FAIRLEAD_DATA") as caught:
        sources.check(name)
    assert "\n" not in str(caught.value)


def test_unknown_names_and_folders(tmp_path: Path) -> None:
    with pytest.raises(FairleadError, match=r"did you mean 'cifar10'\? \(or set FAIRLEAD_DATA"):
        sources.load("cifar-10", tmp_path)
    with pytest.raises(FairleadError, match="is not a folder"):
        sources.load("mnist", tmp_path / "nothing")


def test_every_official_file_has_a_checksum_or_no_address() -> None:
    for source in SOURCES.values():
        for file in source.files:
            assert bool(file.urls) == bool(file.checksum), source.name
            kind, _, digits = (file.checksum or f"sha256:{'0' * 64}").partition(":")
            assert (kind, len(digits), int(digits, 16) >= 0) == ("sha256", 64, True)
            assert all(url.endswith("/" + file.name) for url in file.urls)


def test_digits_stay_as_they_were() -> None:
    found = sources.load("digits")
    assert isinstance(found, Dataset)
    assert sources.get("digits") == []
    assert sources.check("digits") == [found.describe()]
    eights = found.against_others(8)
    assert eights.classes == 2
    assert eights.name == "digits, 8 against others"


# Downloads.


def test_download_once(server: Server, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files = MNIST
    offer(monkeypatch, "mnist", MNIST, server.url("whole"))
    found = sources.load("mnist")
    assert torch.equal(found.x, torch.tensor(IMAGES[:, None]))
    assert len(server.asked) == 4
    assert everything(nowhere) == sorted(f"mnist/{name}" for name in MNIST)
    assert sources.get("mnist") == [nowhere / "mnist" / name for name in MNIST]
    assert torch.equal(sources.load("mnist").x, found.x)
    assert len(server.asked) == 4


def test_a_damaged_file_in_the_cache_is_replaced(
    server: Server, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files = ROWS
    small_a9a(monkeypatch, server.url("whole"))
    put(nowhere / "a9a", {**ROWS, "a9a": b"+1 1:1 122:1 \n-1 \n"})
    assert sources.load("a9a").x[0, 122] == 1
    assert server.asked == ["/whole/a9a"]
    assert (nowhere / "a9a" / "a9a").read_bytes() == ROWS["a9a"]


@pytest.mark.parametrize(
    ("way", "known", "said"),
    [
        ("gone", True, "404 Not Found"),
        ("cut", True, "the connection broke off"),
        ("short", True, "not the published file"),
        ("wrong", True, "not the published file"),
        ("gone", False, "404 Not Found"),
        ("cut", False, "the connection broke off"),
        ("short", False, "a9a is truncated"),
        ("wrong", False, "a9a is truncated"),
    ],
)
def test_what_a_bad_server_sends_does_not_stay(
    server: Server, nowhere: Path, monkeypatch: pytest.MonkeyPatch, way: str, known: bool, said: str
) -> None:
    server.files = ROWS
    small_a9a(monkeypatch, server.url(way), known=known)
    with pytest.raises(FairleadError) as caught:
        sources.load("a9a")
    assert said in str(caught.value)
    assert f"by hand to {nowhere / 'a9a'}, or set FAIRLEAD_DATA" in str(caught.value)
    assert everything(nowhere) == []
    assert list((nowhere / "a9a").iterdir()) == []
    assert {row.name: row.where for row in sources.listing()}["a9a"] == "not found"


@pytest.mark.parametrize("way", ["gone", "cut", "short", "wrong"])
@pytest.mark.parametrize("known", [True, False])
def test_a_mirror_helps(
    server: Server, nowhere: Path, monkeypatch: pytest.MonkeyPatch, way: str, known: bool
) -> None:
    server.files = ROWS
    small_a9a(monkeypatch, server.url(way), server.url("whole"), known=known)
    assert sources.load("a9a").y.tolist() == [1, -1]
    assert server.asked == [f"/{w}/{name}" for name in ROWS for w in (way, "whole")]
    assert everything(nowhere) == ["a9a/a9a", "a9a/a9a.t"]
    told = sources.check("a9a")
    assert ("has the published checksum" if known else "has no published checksum") in told[0]


def test_without_network(monkeypatch: pytest.MonkeyPatch, nowhere: Path, server: Server) -> None:
    address = server.url("whole")
    server.shutdown()
    server.server_close()
    small_a9a(monkeypatch, address)
    with pytest.raises(
        FairleadError, match=r"a9a was not found: .*no connection.*by hand"
    ) as caught:
        sources.load("a9a")
    assert "\n" not in str(caught.value)
    assert everything(nowhere) == []


@given(share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=10)
def test_a_cache_file_cut_anywhere_is_never_used(
    server: Server, nowhere: Path, share: float
) -> None:
    name = "train-images-idx3-ubyte.gz"
    server.files = MNIST
    put(nowhere, {name: MNIST[name][: int(share * len(MNIST[name]))]})
    for url, checksum, verify in (
        (f"{server.url('gone')}/{name}", sha256(MNIST[name]), None),
        (f"{server.url('gone')}/{name}", None, formats.read_idx),
    ):
        with pytest.raises(FairleadError, match="404"):
            fetch.fetch(url, checksum, nowhere, verify=verify)
    url = f"{server.url('whole')}/{name}"
    path = fetch.fetch(url, None, nowhere, verify=formats.read_idx)
    assert path.read_bytes() == MNIST[name]


def test_md5_and_progress(
    server: Server, nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytes(3 << 20)
    server.files = {"zeros": data}
    known = f"md5:{hashlib.md5(data).hexdigest()}"
    path = fetch.fetch(f"{server.url('whole')}/zeros", known, nowhere, progress=True)
    assert path.read_bytes() == data
    assert capsys.readouterr().out == ""


def test_threads_download_at_once(server: Server, nowhere: Path) -> None:
    data = os.urandom(1 << 20)
    server.files = {"noise": data}
    start = threading.Barrier(6)

    def one(_: int) -> bytes:
        start.wait()
        return fetch.fetch(f"{server.url('whole')}/noise", sha256(data), nowhere).read_bytes()

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(one, range(6))) == [data] * 6
    assert [p.name for p in nowhere.iterdir()] == ["noise"]


def test_processes_download_at_once(server: Server, nowhere: Path) -> None:
    data = os.urandom(1 << 20)
    server.files = {"noise": data}
    args = (f"{server.url('whole')}/noise", sha256(data), str(nowhere))
    program = (
        "import sys; from fairlead.data.fetch import fetch\n"
        "print('ready', flush=True); input(); print(fetch(*sys.argv[1:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        other.stdin.write("\n")
        other.stdin.flush()
        assert fetch.fetch(*args).read_bytes() == data
        assert other.communicate()[0] == f"{nowhere / 'noise'}\n"
    assert other.returncode == 0
    assert (nowhere / "noise").read_bytes() == data
    assert [p.name for p in nowhere.iterdir()] == ["noise"]


def test_what_a_killed_download_left_goes(server: Server, nowhere: Path) -> None:
    server.files = {"noise": b"noise"}
    old, new = put(nowhere / ".part-old", {"a": b"a"}), put(nowhere / ".part-new", {"a": b"a"})
    os.utime(old, (time.time() - 1e6,) * 2)
    fetch.fetch(f"{server.url('whole')}/noise", None, nowhere)
    assert not old.exists()
    assert new.exists()


def test_a_cache_that_cannot_be_written(server: Server, nowhere: Path) -> None:
    nowhere.parent.mkdir()
    nowhere.write_text("a file")
    with pytest.raises(FairleadError, match=r"cannot be written .* set FAIRLEAD_CACHE"):
        fetch.fetch(f"{server.url('whole')}/noise", None, nowhere)


def test_without_pooch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(FairleadError, match=r"pooch: pip install pooch"):
        sources.load("mnist")
    monkeypatch.delenv("FAIRLEAD_CACHE")
    assert {row.where for row in sources.listing()} == {"embedded", "not found"}
    with pytest.raises(FairleadError, match="mnist was not found"):
        sources.check("mnist")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, nowhere: Path) -> None:
    assert fetch.cache() == nowhere
    monkeypatch.delenv("FAIRLEAD_CACHE")
    assert fetch.cache().parts[-2:] == ("fairlead", "data")


REAL = os.environ.get("FAIRLEAD_DATA")


@pytest.mark.skipif(not REAL, reason="needs FAIRLEAD_DATA")
@pytest.mark.parametrize(
    ("name", "described"),
    [
        ("cifar10", "50,000 + 10,000 samples of 3 × 32 × 32 uint8 numbers, 10 classes"),
        ("fashion-mnist", "60,000 + 10,000 samples of 1 × 28 × 28 uint8 numbers, 10 classes"),
        ("femnist", "42,953 + 4,924 samples of 1 × 28 × 28 uint8 numbers, 62 classes, 314 clients"),
        ("a9a", "32,561 + 16,281 samples of 123 float32 numbers, 2 classes"),
        ("w8a", "44,774 + 4,975 samples of 300 float32 numbers, 2 classes"),
    ],
)
def test_real_data(name: str, described: str) -> None:
    if name not in {row.name for row in sources.listing(REAL) if row.where == REAL}:
        pytest.skip(f"{name} is not in FAIRLEAD_DATA")
    assert sources.check(name, REAL)[-1].startswith(f"{name}: {described}")


def rows_as_libsvm(x: Any, y: Any) -> bytes:
    """Binary features as LIBSVM writes them."""
    return b"".join(
        (b"+1 " if label > 0 else b"-1 ") + b"".join(b"%d:1 " % (j + 1) for j in np.flatnonzero(row)) + b"\n"
        for row, label in zip(x, y, strict=True)
    )  # fmt: skip


@pytest.mark.skipif(not REAL, reason="needs FAIRLEAD_DATA")
def test_real_rows_written_out_have_the_published_checksums(tmp_path: Path) -> None:
    for name in ("a9a", "w8a"):
        path = Path(REAL or "") / f"{name}.npz"
        if not path.is_file():
            pytest.skip(f"{name} is not in FAIRLEAD_DATA")
        found = formats.from_npz(path)
        for file, x, y in ((name, found.x, found.y), (f"{name}.t", found.x_test, found.y_test)):
            if x is not None:
                put(tmp_path, {file: rows_as_libsvm(x, y)})
        one, other = sources.load(name, tmp_path), sources.load(name, REAL)
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y_test, other.y_test)
        assert len(sources.check(name, tmp_path)) == 1 + len(SOURCES[name].files)


def test_a_list_shows_what_the_files_hold(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (9, 28, 28), np.uint8)
    np.savez(
        tmp_path / "femnist.npz", x_train=images, y_train=np.arange(9) % 4, x_test=images[:3],
        y_test=np.arange(3), writer_train=np.arange(9) % 2, writer_test=np.zeros(3, int),
        x_extra=images[:2], y_extra=np.zeros(2, int),
    )  # fmt: skip
    np.savez_compressed(tmp_path / "mine.npz", x_train=np.zeros((5, 3)), y_train=np.ones(5))
    np.savez(tmp_path / "other.npz", weights=np.zeros(4))
    (tmp_path / "mnist.npz").write_bytes(b"not a zip file")
    rows = {row.name: row for row in sources.listing(tmp_path)}
    assert rows["femnist"].holds == (9, 3, 2, 4, 2)
    assert rows["femnist"].holds.samples == "9 + 3 + 2"
    assert rows["mine"].holds == (5, 0, 0, 1, None)
    assert rows["mine"].where == str(tmp_path)
    assert "other" not in rows
    assert "mnist.npz cannot be read" in rows["mnist"].wrong
    assert rows["cifar10"].holds is None
