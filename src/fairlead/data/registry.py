"""The data sets by name: what they are, where their official files are, how to read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from fairlead.data import formats, leaf
from fairlead.data.formats import Arrays

Reader: TypeAlias = Callable[[Sequence[Path]], Arrays]


@dataclass(frozen=True)
class File:
    """One official file. Without a published checksum, `verify` reads the download."""

    name: str
    urls: tuple[str, ...] = ()
    checksum: str | None = None
    unpacked: str | None = None
    """Its name once unpacked: the name without .gz, or an archive's folder."""
    verify: Callable[[Path], object] | None = None


@dataclass(frozen=True)
class Source:
    """One data set; `shape` is a sample's, channels first."""

    name: str
    what: str
    cite: str
    samples: int
    classes: int
    shape: tuple[int, ...]
    files: tuple[File, ...] = ()
    read: Reader | None = None
    folders: tuple[str, ...] = ()
    """Subfolders of the data folder to search; the first is also used in the cache."""
    shared_names: bool = False
    """Whether other sets use the same file names: outside `folders` files are identified by checksum."""
    by_hand: str = ""
    """How to get a data set that cannot be downloaded."""


def _idx(
    bases: Sequence[str], sums: Sequence[str], classes: int = 10
) -> tuple[tuple[File, ...], Reader]:
    names = [
        f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    ]
    files = tuple(
        File(
            f"{name}-ubyte.gz",
            tuple(f"{base}/{name}-ubyte.gz" for base in bases),
            f"sha256:{known}",
            f"{name}-ubyte",
            formats.read_idx,
        )
        for name, known in zip(names, sums, strict=True)
    )
    return files, partial(formats.read_idx_set, classes=classes)


def _mnist() -> Source:
    files, read = _idx(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    )
    return Source(
        "mnist", "handwritten digits", "LeCun, Bottou, Bengio and Haffner 1998; CC BY-SA 3.0",
        70_000, 10, (1, 28, 28), files, read, ("mnist", "MNIST/raw"), shared_names=True,
    )  # fmt: skip


def _fashion() -> Source:
    files, read = _idx(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        ),
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    )
    return Source(
        "fashion-mnist", "photographs of clothes", "Xiao, Rasul and Vollgraf 2017; MIT",
        70_000, 10, (1, 28, 28), files, read,
        ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw"), shared_names=True,
    )  # fmt: skip


def _emnist(part: str, what: str, samples: int, classes: int, first: int = 0) -> Source:
    read = partial(formats.read_emnist, part=part, classes=classes, first=first)
    archive = File(
        "gzip.zip",
        (
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
        ),
        "sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
        "gzip",
        lambda path: read([path]),
    )
    return Source(
        f"emnist-{part}", what,
        "Cohen, Afshar, Tapson and van Schaik 2017, from NIST Special Database 19",
        samples, classes, (1, 28, 28), (archive,), read, ("emnist", "EMNIST/raw"),
    )  # fmt: skip


def _cifar(
    classes: int,
    what: str,
    checksum: str,
    unpacked: str,
    read: Reader,
) -> Source:
    name = f"cifar-{classes}-binary.tar.gz"
    urls = tuple(
        f"https://{base}/{name}"
        for base in ("www.cs.toronto.edu/~kriz", "cave.cs.toronto.edu/kriz")
    )
    archive = File(name, urls, checksum, unpacked, lambda path: read([path]))
    return Source(
        f"cifar{classes}", what, "Krizhevsky 2009", 60_000, classes, (3, 32, 32), (archive,), read,
        (f"cifar{classes}",),
    )  # fmt: skip


def _libsvm(
    name: str, what: str, cite: str, features: int, parts: Sequence[tuple[str, int, str]]
) -> Source:
    base = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
    files = tuple(
        File(
            file,
            (f"{base}/{file}",),
            f"sha256:{known}",
            verify=partial(formats.read_libsvm, features=features, rows=rows),
        )
        for file, rows, known in parts
    )
    counts = [rows for _, rows, _ in parts]
    read = partial(formats.read_libsvm_set, features=features, rows=counts)
    return Source(name, what, cite, sum(counts), 2, (features,), files, read, (name,))


def _leaf(
    name: str, what: str, samples: int, classes: int, shape: tuple[int, ...], read: Reader
) -> Source:
    return Source(
        name, what, "Caldas et al. 2018 (LEAF); BSD 2-Clause", samples, classes, shape,
        (File("train"), File("test")), read, (name, f"{name}/data"), shared_names=True,
        by_hand=f"run ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample in data/{name} of "
        "https://github.com/TalwalkarLab/leaf and copy its data/train and data/test",
    )  # fmt: skip


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "digits", "handwritten digits of 8 × 8 pixels, included in scikit-learn",
            "Alpaydin and Kaynak 1998; CC BY 4.0", 1_797, 10, (64,),
        ),
        _mnist(),
        _fashion(),
        _emnist("balanced", "handwritten digits and letters, balanced classes", 131_600, 47),
        _emnist("byclass", "handwritten digits and letters of both cases", 814_255, 62),
        _emnist("letters", "handwritten letters, both cases merged", 145_600, 26, first=1),
        _emnist("digits", "handwritten digits", 280_000, 10),
        _leaf(
            "femnist", "handwritten digits and letters by writer", 805_263, 62, (1, 28, 28),
            leaf.read_femnist,
        ),
        _cifar(
            10, "photographs of animals and vehicles",
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            "cifar-10-batches-bin",
            partial(
                formats.read_cifar, train=[f"data_batch_{k}.bin" for k in range(1, 6)],
                test="test_batch.bin", classes=(10,), records=(10_000, 10_000),
            ),
        ),
        _cifar(
            100, "photographs of a hundred kinds of objects",
            "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            "cifar-100-binary",
            partial(
                formats.read_cifar, train=["train.bin"],
                test="test.bin", classes=(20, 100), records=(50_000, 10_000),
            ),
        ),
        _libsvm(
            "a9a", "income over 50,000 dollars (Adult), 123 binary features",
            "Kohavi 1996, Platt 1998; LIBSVM's copy (Chang and Lin 2011); CC BY 4.0", 123,
            (
                ("a9a", 32_561, "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
                ("a9a.t", 16_281, "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
            ),
        ),
        _libsvm(
            "w8a", "web pages in one category or not, 300 keywords",
            "Platt 1998; LIBSVM's copy (Chang and Lin 2011)", 300,
            (("w8a", 49_749, "6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2"),),
        ),
        _leaf(
            "shakespeare", "the next character of a role's lines in Shakespeare's plays", 4_226_158,
            len(leaf.CHARACTERS), (80,), leaf.read_shakespeare,
        ),
    )
}  # fmt: skip
"""The data sets that `load` knows by name."""
