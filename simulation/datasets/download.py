"""Download of public data sets from their authors or the usual mirrors, for the loaders.

Every file is checked against its SHA-256 before its content is read; TensorFlow Datasets and others
record the same sums.
"""

import gzip
import hashlib
import io
import struct
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import numpy as np

from algorithms.spec import unknown
from host.files import file_error
from simulation.datasets.images import CLOTHES, DIGITS, OBJECTS
from wire.arrays.tensors import Array
from wire.errors import DataError

TIMEOUT_S = 60.0
IDX = {
    "x_train": "train-images-idx3-ubyte.gz",
    "y_train": "train-labels-idx1-ubyte.gz",
    "x_test": "t10k-images-idx3-ubyte.gz",
    "y_test": "t10k-labels-idx1-ubyte.gz",
}


@dataclass(frozen=True)
class PublicDataSet:
    """A public data set: its files, and their conversion to the one file that a loader reads.

    `files` has the SHA-256 in hex by address.
    """

    files: Mapping[str, str]
    target: str
    convert: Callable[[list[bytes]], bytes]


def download(name: str, folder: Path, sources: Mapping[str, PublicDataSet] | None = None) -> Path:
    """Download a set into `folder` (that of SHOAL_DATA) and return the path of its file there.

    A file that exists is not downloaded again.

    Raises:
        DataError: there is no such set, no connection, or a file that is not the published one.
    """
    source_by_name = SOURCES if sources is None else sources
    if name not in source_by_name:
        raise DataError(unknown("download", name, source_by_name))
    source = source_by_name[name]
    target = folder / source.target
    if target.exists():
        return target
    payloads = [_fetch(name, target, url, digest) for url, digest in source.files.items()]
    try:
        content = source.convert(payloads)
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        struct.error,
        tarfile.TarError,
        zipfile.BadZipFile,
    ) as error:
        raise DataError(
            f"download {name!r}: the file does not have the expected layout: {error}"
        ) from None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        part.write_bytes(content)
        part.replace(target)
    except OSError as error:
        raise DataError(
            file_error(f"download {name!r}: {target} cannot be written", error)
        ) from None
    return target


def _fetch(name: str, target: Path, url: str, digest: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            payload: bytes = response.read()
    except (OSError, HTTPException) as error:
        raise DataError(
            f"download {name!r}: {url} cannot be read: {error}. Without a connection, copy the "
            f"data to {target}."
        ) from None
    payload_digest = hashlib.sha256(payload).hexdigest()
    if payload_digest != digest:
        raise DataError(
            f"download {name!r}: {url} must have SHA-256 {digest}, got {payload_digest}"
        )
    return payload


def read_idx(payload: bytes) -> Array:
    """Return the uint8 array of a gzipped idx file.

    The file is two zero bytes, type 8, the number of dimensions, the dimensions as big-endian
    uint32, and the data.

    Raises:
        ValueError: it has another type, or a length that its dimensions do not give.
    """
    data = gzip.decompress(payload)
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"an idx file must begin with 00 00 08, got {data[:3].hex(' ')}")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def idx_to_npz(payloads: list[bytes], classes: tuple[str, ...]) -> bytes:
    """Convert the four idx files in the order of `IDX` to one ``.npz``."""
    return _npz(
        {key: read_idx(payload) for key, payload in zip(IDX, payloads, strict=True)}, classes
    )


def cifar_to_npz(payloads: list[bytes]) -> bytes:
    """Convert the binary CIFAR-10, records of a label and 3 x 32 x 32 bytes, to one ``.npz``."""
    with tarfile.open(fileobj=io.BytesIO(payloads[0])) as archive:
        batches = {
            Path(m.name).name: file.read()
            for m in archive
            if m.isfile() and (file := archive.extractfile(m))
        }
    arrays = {}
    for part, names in (
        ("train", [f"data_batch_{i}.bin" for i in range(1, 6)]),
        ("test", ["test_batch.bin"]),
    ):
        records = np.concatenate(
            [np.frombuffer(batches[n], np.uint8).reshape(-1, 3073) for n in names]
        )
        arrays[f"x_{part}"] = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays[f"y_{part}"] = records[:, 0]
    return _npz(arrays, OBJECTS)


def inner_zip(payloads: list[bytes]) -> bytes:
    """Return the zip of UCI HAR from inside the zip that UCI serves."""
    with zipfile.ZipFile(io.BytesIO(payloads[0])) as archive:
        return archive.read("UCI HAR Dataset.zip")


def _npz(arrays: dict[str, Array], classes: tuple[str, ...]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, class_names=np.array(classes), **arrays)
    return buffer.getvalue()


def _idx_files(root: str, digests: tuple[str, str, str, str]) -> dict[str, str]:
    return {root + file: digest for file, digest in zip(IDX.values(), digests, strict=True)}


SOURCES = {
    "uci-har": PublicDataSet(
        {
            (
                "https://archive.ics.uci.edu/static/public/240/"
                "human+activity+recognition+using+smartphones.zip"
            ): ("c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031")
        },
        "uci_har/UCI HAR Dataset.zip",
        inner_zip,
    ),
    "mnist": PublicDataSet(
        _idx_files(
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        "mnist/mnist.npz",
        lambda payloads: idx_to_npz(payloads, DIGITS),
    ),
    "fashion-mnist": PublicDataSet(
        _idx_files(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
        "fashion_mnist/fashion_mnist.npz",
        lambda payloads: idx_to_npz(payloads, CLOTHES),
    ),
    "cifar10": PublicDataSet(
        {
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz": (
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
            )
        },
        "cifar10/cifar10.npz",
        cifar_to_npz,
    ),
}
