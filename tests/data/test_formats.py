"""Readers of official files: small files written here come back exactly, damaged ones are refused."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import FairleadError
from fairlead.data import archives, formats, leaf

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8)
LABELS = np.array([3, 1, 26, 9, 2, 1], dtype=np.uint8)


def idx(array: Any) -> bytes:
    """An array of bytes in IDX form."""
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def tar(files: dict[str, bytes], extra: tarfile.TarInfo | None = None) -> bytes:
    """A tar.gz archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if extra is not None:
            archive.addfile(extra)
    return out.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    """A zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def npz(**arrays: Any) -> bytes:
    """An npz file."""
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def emnist_files(part: str, images: Any, labels: Any) -> dict[str, bytes]:
    """Members of EMNIST's archive, train and test alike; images stored on their side."""
    return {
        f"gzip/emnist-{part}-{half}-{kind}-ubyte.gz": gzip.compress(idx(array))
        for half in ("train", "test")
        for kind, array in (("images-idx3", images.swapaxes(1, 2)), ("labels-idx1", labels))
    }


PIXELS = RNG.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
FINE = np.array([7, 0, 99, 50])


def cifar_bytes(*labels: Any) -> bytes:
    """Records of the binary version."""
    columns = [np.asarray(column, np.uint8)[:, None] for column in labels]
    return np.concatenate([*columns, PIXELS.reshape(4, -1)], 1).tobytes()


def cifar10(path: Path) -> formats.Arrays:
    """Two training files and a test file of four records."""
    names = ["data_batch_1.bin", "data_batch_2.bin"]
    return formats.read_cifar([path], names, "test_batch.bin", [10], (4, 4))


CIFAR10 = {
    f"cifar-10-batches-bin/{name}.bin": cifar_bytes([1, 2, 3, 9])
    for name in ("data_batch_1", "data_batch_2", "test_batch")
}
ROWS = b"+1 1:1 3:0.5 \n-1 \n1 2:-2e-1 5:3\n"
DENSE = np.array([[1, 0, 0.5, 0, 0], [0] * 5, [0, -0.2, 0, 0, 3]], np.float32)
ARRAYS = {
    "x_train": PIXELS.transpose(0, 2, 3, 1),
    "y_train": FINE,
    "x_test": PIXELS[:2].transpose(0, 2, 3, 1),
    "y_test": FINE[:2],
    "writer_train": np.array([0, 0, 1, 1], np.int16),
    "writer_test": np.array([0, 1], np.int16),
    "writer_ids": np.array(["ann", "bob"]),
}


def leaf_json(x: dict[str, Any], y: dict[str, Any], **more: Any) -> bytes:
    """A file of LEAF."""
    found = {
        "users": list(x),
        "num_samples": [len(v) for v in x.values()],
        "user_data": {user: {"x": x[user], "y": y[user]} for user in x},
    }
    return json.dumps({**found, **more}).encode()


def femnist(path: Path) -> formats.Arrays:
    """The folder of a file as both parts."""
    return leaf.read_femnist([path.parent, path.parent])


LINE = "To be, or not to be: that is the question; whether 'tis nobler in the mind & so!"
WRITTEN = leaf_json(
    {"f1": [(IMAGES[k].ravel() / 255).tolist() for k in range(2)], "f0": [[1.0] * 784]},
    {"f1": [61, 0], "f0": [36]},
)
SPOKEN = leaf_json({"HAMLET": [LINE, LINE[1:] + "\n"]}, {"HAMLET": ["\n", "}"]})

CASES: dict[str, tuple[str, bytes, Callable[[Path], Any]]] = {
    "idx": ("images-idx3-ubyte", idx(IMAGES), formats.read_idx),
    "idx.gz": ("images-idx3-ubyte.gz", gzip.compress(idx(IMAGES)), formats.read_idx),
    "emnist": (
        "gzip.zip",
        zipped(emnist_files("letters", IMAGES, LABELS)),
        lambda p: formats.read_emnist([p], "letters", 26, first=1),
    ),
    "cifar": ("cifar-10-binary.tar.gz", tar(CIFAR10), cifar10),
    "libsvm": ("rows", ROWS, lambda p: formats.read_libsvm(p, 5, 3)),
    "libsvm.bz2": ("rows.bz2", bz2.compress(ROWS), lambda p: formats.read_libsvm(p, 5, 3)),
    "libsvm.gz": ("rows.gz", gzip.compress(ROWS), lambda p: formats.read_libsvm(p, 5, 3)),
    "npz": ("set.npz", npz(**ARRAYS), formats.from_npz),
    "femnist": ("data.json", WRITTEN, femnist),
    "shakespeare": (
        "data.json",
        SPOKEN,
        lambda p: leaf.read_shakespeare([p.parent, p.parent]),
    ),
}
CHECKSUMMED = ["idx.gz", "emnist", "cifar", "libsvm.bz2", "libsvm.gz", "npz"]
quick = settings(max_examples=25)


def write(folder: Path, name: str, data: bytes) -> Path:
    """A file in a folder."""
    path = folder / name
    path.write_bytes(data)
    return path


def flat(found: Any) -> list[Any]:
    """Everything a reader returned."""
    if isinstance(found, formats.Arrays):
        return [value for value in vars(found).values() if value is not None]
    return list(found) if isinstance(found, tuple) else [found]


def refusal(read: Callable[[Path], Any], path: Path) -> str:
    """The sentence with which a file is refused; it names the file."""
    with pytest.raises(FairleadError) as caught:
        read(path)
    said = str(caught.value)
    assert str(path) in said
    assert "\n" not in said
    return said


def test_idx_round_trip(tmp_path: Path) -> None:
    for name in ("idx", "idx.gz"):
        file, data, read = CASES[name]
        np.testing.assert_array_equal(read(write(tmp_path, file, data)), IMAGES)


def test_mnist_has_four_files(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, f"{k}.gz", gzip.compress(idx(array)))
        for k, array in enumerate((IMAGES, LABELS % 10, IMAGES[:2], LABELS[:2]))
    ]
    found = formats.read_idx_set(paths, 10)
    np.testing.assert_array_equal(found.x, IMAGES[:, None])
    np.testing.assert_array_equal(found.y, LABELS % 10)
    np.testing.assert_array_equal(found.x_test, IMAGES[:2, None])
    np.testing.assert_array_equal(found.y_test, LABELS[:2])
    write(tmp_path, "1.gz", gzip.compress(idx(LABELS)))
    with pytest.raises(FairleadError, match=r"1.gz holds the label 26"):
        formats.read_idx_set(paths, 10)
    write(tmp_path, "1.gz", gzip.compress(idx(LABELS[:5] % 10)))
    with pytest.raises(FairleadError, match=r"1.gz has labels of shape \(5,\) for images"):
        formats.read_idx_set(paths, 10)


def test_emnist_is_turned_upright_and_letters_start_from_zero(tmp_path: Path) -> None:
    file, data, read = CASES["emnist"]
    found = read(write(tmp_path, file, data))
    np.testing.assert_array_equal(found.x, IMAGES[:, None])
    np.testing.assert_array_equal(found.y, LABELS - 1)
    np.testing.assert_array_equal(found.x_test, IMAGES[:, None])


def test_emnist_from_its_unpacked_folder(tmp_path: Path) -> None:
    for name, data in emnist_files("letters", IMAGES, LABELS).items():
        write(tmp_path, Path(name).name, data)
    found = formats.read_emnist([tmp_path], "letters", 26, first=1)
    np.testing.assert_array_equal(found.x, IMAGES[:, None])
    (tmp_path / "emnist-letters-test-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FairleadError, match="has no emnist-letters-test-labels"):
        formats.read_emnist([tmp_path], "letters", 26, first=1)


def test_emnist_label_zero_among_letters(tmp_path: Path) -> None:
    path = write(tmp_path, "gzip.zip", zipped(emnist_files("letters", IMAGES, LABELS - 1)))
    assert "holds the label -1" in refusal(CASES["emnist"][2], path)


def test_cifar10_round_trip(tmp_path: Path) -> None:
    file, data, read = CASES["cifar"]
    found = read(write(tmp_path, file, data))
    np.testing.assert_array_equal(found.x, np.concatenate([PIXELS, PIXELS]))
    np.testing.assert_array_equal(found.y, [1, 2, 3, 9] * 2)
    np.testing.assert_array_equal(found.x_test, PIXELS)


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    files = {
        f"cifar-100-binary/{n}.bin": cifar_bytes([0, 1, 19, 2], FINE) for n in ("train", "test")
    }
    path = write(tmp_path, "cifar-100-binary.tar.gz", tar(files))
    found = formats.read_cifar([path], ["train.bin"], "test.bin", (20, 100), (4, 4))
    np.testing.assert_array_equal(found.y, FINE)
    np.testing.assert_array_equal(found.x, PIXELS)
    with pytest.raises(FairleadError, match="holds the label 19"):
        formats.read_cifar([path], ["train.bin"], "test.bin", (19, 100), (4, 4))


def test_cifar_counts_records(tmp_path: Path) -> None:
    short = {**CIFAR10, "cifar-10-batches-bin/data_batch_2.bin": cifar_bytes([1, 2, 3, 9])[:-3073]}
    assert "data_batch_2.bin is truncated" in refusal(
        cifar10, write(tmp_path, "a.tar.gz", tar(short))
    )
    for name, data in short.items():
        write(tmp_path, Path(name).name, data)
    with pytest.raises(FairleadError, match=r"data_batch_2.bin is truncated"):
        cifar10(tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_tar_with_links(tmp_path: Path, kind: bytes) -> None:
    extra = tarfile.TarInfo("cifar-10-batches-bin/readme")
    extra.type, extra.linkname = kind, "/etc/passwd"
    said = refusal(cifar10, write(tmp_path, "a.tar.gz", tar(CIFAR10, extra)))
    assert "is a link or a device" in said


@pytest.mark.parametrize("name", ["../test_batch.bin", "/tmp/test_batch.bin", "a/../../b"])
def test_members_outside_the_archive(tmp_path: Path, name: str) -> None:
    files = {**CIFAR10, name: b"x"}
    for file, data in (("a.tar.gz", tar(files)), ("a.zip", zipped(files))):
        said = refusal(cifar10, write(tmp_path, file, data))
        assert "points outside the archive" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar.gz", "a.zip"]


def test_zip_with_a_link(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("test_batch.bin")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    assert "is a link" in refusal(cifar10, write(tmp_path, "a.zip", out.getvalue()))


def test_member_twice_or_missing(tmp_path: Path) -> None:
    twice = {**CIFAR10, "other/test_batch.bin": b"x"}
    assert "holds test_batch.bin twice" in refusal(cifar10, write(tmp_path, "a.tar.gz", tar(twice)))
    some = dict(list(CIFAR10.items())[:2])
    assert "it has no test_batch.bin" in refusal(cifar10, write(tmp_path, "a.tar.gz", tar(some)))


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LIMIT", 1 << 20)
    bomb = write(tmp_path, "bomb.gz", gzip.compress(bytes(1 << 25)))
    assert "unpacks to more than" in refusal(formats.read_idx, bomb)
    large = write(tmp_path, "bomb.npz", npz(x_train=np.zeros(1 << 20)))
    assert "more than" in refusal(formats.from_npz, large)


def test_a_bomb_is_refused_long_before_it_is_unpacked(tmp_path: Path, monkeypatch) -> None:
    """What unpacks to a thousand times its size is refused at a hundred times."""
    monkeypatch.setattr(archives, "SMALL", 1 << 20)
    bomb = write(tmp_path, "bomb.gz", gzip.compress(bytes(1 << 27)))
    assert bomb.stat().st_size < 1 << 18
    assert "unpacks to more than 12 MiB" in refusal(formats.read_idx, bomb)


@pytest.mark.parametrize("name", ["libsvm", "libsvm.bz2", "libsvm.gz"])
def test_libsvm_round_trip(tmp_path: Path, name: str) -> None:
    file, data, read = CASES[name]
    x, y = read(write(tmp_path, file, data))
    np.testing.assert_array_equal(x, DENSE)
    np.testing.assert_array_equal(y, [1, -1, 1])
    assert x.dtype == y.dtype == np.float32


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (b"2 1:1\n", "line 1 (the label is 2"),
        (b"+1 1:1\n+1 6:1\n", "line 2 (6:1 after index 0 of 5 features)"),
        (b"+1 0:1\n", "0:1 after index 0"),
        (b"+1 3:1 3:1\n", "3:1 after index 3"),
        (b"+1 1:nan\n", "1:nan"),
        (b"+1 1:2e91\n", "1:2e91"),
        (b"+1 1\n", "line 1"),
        (b"+1 one:1\n", "line 1"),
        (b"\n", "line 1"),
        (b"+1 1:\xff\n", "line 1"),
        (b"+1 1:1", "last line has no line break"),
    ],
)
def test_libsvm_says_which_line(tmp_path: Path, rows: bytes, said: str) -> None:
    assert said in refusal(lambda p: formats.read_libsvm(p, 5), write(tmp_path, "rows", rows))


def test_npz_round_trip(tmp_path: Path) -> None:
    file, data, read = CASES["npz"]
    found = read(write(tmp_path, file, data))
    np.testing.assert_array_equal(found.x, PIXELS)
    np.testing.assert_array_equal(found.x_test, PIXELS[:2])
    np.testing.assert_array_equal(found.groups, [0, 0, 1, 1])
    np.testing.assert_array_equal(found.groups_test, [0, 1])
    assert found.group_names == ("ann", "bob")
    grey = formats.from_npz(write(tmp_path, "g.npz", npz(x_train=IMAGES, y_train=LABELS)))
    np.testing.assert_array_equal(grey.x, IMAGES[:, None])
    assert grey.x_test is None


def test_npz_with_a_pickle_does_not_run_it(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (pytest.fail, ("the pickle was run",))

    trap = np.array([Trap()], dtype=object)
    path = write(tmp_path, "trap.npz", npz(x_train=trap, y_train=LABELS))
    assert "holds pickled objects" in refusal(formats.from_npz, path)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x_train": IMAGES}, "has no array y_train"),
        ({"x_train": IMAGES, "y_train": LABELS[:3]}, "different lengths"),
        ({**ARRAYS, "writer_train": np.array([0, 1, 2, 0])}, "holds the label 2"),
        ({**ARRAYS, "writer_test": np.array([0])}, "different lengths"),
        ({**ARRAYS, "x_train": np.float64(3.0)}, "an array x_train of shape ()"),
        ({**ARRAYS, "y_train": np.array(3)}, "an array y_train of shape ()"),
        ({**ARRAYS, "x_train": np.array(["a", "b", "c", "d"])}, "and type <U1"),
        ({**ARRAYS, "x_train": np.zeros(4)}, "x_train of one axis"),
        ({**ARRAYS, "writer_train": np.array([0.5, 1, 2, 0])}, "writer_train of shape (4,)"),
        ({**ARRAYS, "writer_ids": np.array(7)}, "writer_ids of shape ()"),
    ],
)
def test_npz_with_other_arrays(tmp_path: Path, arrays: Any, said: str) -> None:
    assert said in refusal(formats.from_npz, write(tmp_path, "set.npz", npz(**arrays)))


def test_femnist_round_trip(tmp_path: Path) -> None:
    found = femnist(write(tmp_path, "data.json", WRITTEN))
    np.testing.assert_array_equal(found.x[:2, 0], IMAGES[:2])
    assert (found.x[2] == 255).all()
    np.testing.assert_array_equal(found.y, [61, 0, 36])
    np.testing.assert_array_equal(found.groups, [1, 1, 0])
    assert found.group_names == ("f0", "f1")
    whole = leaf_json({"w": IMAGES[:1].reshape(1, 784).tolist()}, {"w": [5]})
    np.testing.assert_array_equal(femnist(write(tmp_path, "data.json", whole)).x[:, 0], IMAGES[:1])


def test_leaf_over_several_files(tmp_path: Path) -> None:
    train, test = tmp_path / "train", tmp_path / "test"
    for folder in (train, test):
        folder.mkdir()
    one, two = ({user: [[0.5] * 784] * k} for user, k in (("b", 2), ("a", 1)))
    write(train, "1.json", leaf_json(one, {"b": [1, 2]}))
    write(train, "2.json", leaf_json(two, {"a": [3]}))
    write(
        test, "1.json", leaf_json({"c": [[0] * 784], **two, "d": []}, {"c": [4], "a": [5], "d": []})
    )
    found = leaf.read_femnist([train, test])
    assert found.group_names == ("a", "b", "c")
    np.testing.assert_array_equal(found.groups, [1, 1, 0])
    np.testing.assert_array_equal(found.groups_test, [2, 0])
    assert int(found.x[0, 0, 0, 0]) == 128
    write(train, "3.json", leaf_json(two, {"a": [3]}))
    with pytest.raises(FairleadError, match="has the client a twice"):
        leaf.read_femnist([train, test])
    for file in test.iterdir():
        file.unlink()
    with pytest.raises(FairleadError, match="has no JSON files"):
        leaf.read_femnist([train, test])


def test_shakespeare_round_trip(tmp_path: Path) -> None:
    file, data, read = CASES["shakespeare"]
    found = read(write(tmp_path, file, data))
    assert "".join(leaf.CHARACTERS[code] for code in found.x[0]) == LINE
    assert "".join(leaf.CHARACTERS[code] for code in found.y) == "\n}"
    assert found.x.dtype == np.uint8
    assert len(leaf.CHARACTERS) == len(set(leaf.CHARACTERS)) == 80


IMAGE = [[0.5] * 784]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (leaf_json({"w": IMAGE}, {"w": [62]}), "holds the label 62"),
        (leaf_json({"w": [[0.5] * 783]}, {"w": [1]}), "images of 784 numbers"),
        (leaf_json({"w": [[0.5] * 392] * 2}, {"w": [1, 1]}), "images of 784 numbers"),
        (leaf_json({"w": [["ink"] * 784]}, {"w": [1]}), "images of 784 numbers"),
        (leaf_json({"w": [[-0.5] * 784]}, {"w": [1]}), "pixels from -0.5"),
        (leaf_json({"v": IMAGE, "w": [[float("nan")] * 784]}, {"v": [1], "w": [1]}), "pixels"),
        (leaf_json({"w": [[256] * 784]}, {"w": [1]}), "pixels from"),
        (leaf_json({"w": IMAGE}, {"w": [1]}, num_samples=[2]), "sample counts that do not match"),
        (leaf_json({"w": IMAGE}, {"w": [1, 2]}), "sample counts that do not match"),
        (leaf_json({"w": IMAGE}, {"w": [1]}, users=["v"]), "lists clients or sample counts"),
        (b'{"users": 5}', "LEAF's JSON"),
        (b"[" * 100_000, "LEAF's JSON"),
        (b"\xff\xfe", "LEAF's JSON"),
    ],
)  # fmt: skip
def test_femnist_that_is_not(tmp_path: Path, data: bytes, said: str) -> None:
    assert said in refusal(femnist, write(tmp_path, "data.json", data))


@pytest.mark.parametrize("line", [LINE[1:], LINE + "!", LINE[:-1] + "é", LINE[:-1] + "#"])
def test_shakespeare_that_is_not(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, "data.json", leaf_json({"H": [line, line]}, {"H": ["a", "b"]}))
    assert "80" in refusal(CASES["shakespeare"][2], path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "truncated"),
        (b"\0\0\x08", "truncated inside its header"),
        (b"\0\0\x08\x03\0\0", "truncated inside its header"),
        (b"\0\0\x0d\x01" + idx(LABELS)[4:], "not an IDX file of bytes (it starts with 00000d01)"),
        (b"\0\0\x08\x09" + bytes(99), "not an IDX file"),
        (idx(LABELS) + b"x", "holds 7 bytes of data instead of 6"),
        (b"\0\0\x08\x04" + b"\xff" * 16, "is truncated: 0 of"),
    ],
)
def test_idx_that_is_not(tmp_path: Path, data: bytes, said: str) -> None:
    assert said in refusal(formats.read_idx, write(tmp_path, "labels", data))


def test_names_that_promise_what_is_not_inside(tmp_path: Path) -> None:
    page = b"<html>404</html>"
    for name, read, said in (
        ("a.gz", formats.read_idx, "is not a gzip file"),
        ("a.bz2", formats.read_idx, "is not a bzip2 file"),
        ("a.zip", cifar10, "is truncated or damaged"),
        ("a.tar.gz", cifar10, "is not a gzip file"),
        ("a.npz", formats.from_npz, "not an npz file"),
    ):
        assert said in refusal(read, write(tmp_path, name, page))
    assert "cannot be read" in refusal(formats.read_idx, tmp_path / "nothing.gz")


def test_every_changed_byte_of_a_zip_list(tmp_path: Path) -> None:
    """A longer comment of one member would hide those after it."""
    data = npz(x_train=IMAGES[:1], y_train=LABELS[:1], x_test=IMAGES[:1], y_test=LABELS[:1])
    for place in range(data.index(b"PK\1\2"), len(data)):
        for change in (1, 128):
            bad = bytearray(data)
            bad[place] ^= change
            try:
                found = formats.from_npz(write(tmp_path, "set.npz", bytes(bad)))
            except FairleadError:
                continue
            np.testing.assert_array_equal(found.x_test, IMAGES[:1, None])
            np.testing.assert_array_equal(found.y_test, LABELS[:1])


@pytest.mark.parametrize("name", CASES)
@given(share=st.floats(0, 1, exclude_max=True))
@quick
def test_cut_anywhere_is_refused(tmp_path: Path, name: str, share: float) -> None:
    file, data, read = CASES[name]
    path = write(tmp_path, file, data[: int(share * len(data))])
    with pytest.raises(FairleadError) as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", CASES)
@given(share=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
@quick
def test_a_changed_byte_is_refused_or_changes_nothing(
    tmp_path: Path, name: str, share: float, change: int
) -> None:
    file, data, read = CASES[name]
    whole = flat(read(write(tmp_path, file, data)))
    bad = bytearray(data)
    bad[int(share * len(data))] ^= change
    path = write(tmp_path, file, bytes(bad))
    try:
        found = flat(read(path))
    except FairleadError:
        refusal(read, path)
        return
    if name in CHECKSUMMED:
        for one, other in zip(whole, found, strict=True):
            np.testing.assert_array_equal(one, other)
