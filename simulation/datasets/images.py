"""MNIST, Fashion-MNIST and CIFAR-10 as pools of images, from ``.npz`` files below SHOAL_DATA.

Y. LeCun, C. Cortes, C. Burges: MNIST. H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST, 2017. A.
Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009. A file holds ``x_train``
and ``x_test`` uint8 (n, height, width) or (n, height, width, RGB), and ``y_train`` and ``y_test``
(n,). A small CIFAR-10 holds JPEG files one after the other in ``train_jpeg``, with
``train_offsets``, in place of ``x_train``, and the same for the test part.
"""

import io
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np

from algorithms.spec import unknown
from simulation.datasets.pool import Pool
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

FILES = {
    "mnist": ("mnist/mnist.npz",),
    "fashion-mnist": ("fashion_mnist/fashion_mnist.npz",),
    "cifar10": (
        "cifar10/cifar10.npz",
        "cifar10/cifar10_jpeg_60k.npz",
        "cifar10/cifar10_lossless_5k.npz",
    ),
    "cifar10-jpeg": ("cifar10/cifar10_jpeg_60k.npz",),
    "cifar10-5k": ("cifar10/cifar10_lossless_5k.npz",),
}
"""Paths of each set below SHOAL_DATA; the first that exists is read.

``cifar10`` prefers all images without loss.
"""

NAMES = {"cifar10_jpeg_60k.npz": "cifar10-jpeg", "cifar10_lossless_5k.npz": "cifar10-5k"}
"""Name of a pool by its file, if the file is not the whole set as it was published."""


def load_images(name: str, folder: Path) -> Pool:
    """Read an image set: x (n, channels, height, width) float32 in [0, 1].

    Order and split are the original ones.

    Raises:
        DataError: there is no such set, none of its files is in `folder`, or one cannot be read.
    """
    if name not in FILES:
        raise DataError(unknown("data set", name, FILES))
    paths = [
        path
        for file in FILES[name]
        for path in (folder / file, folder / Path(file).name)
        if path.exists()
    ]
    if not paths:
        raise DataError(
            f"data {name!r}: SHOAL_DATA={folder} has none of its files: {', '.join(FILES[name])}"
        )
    arrays = _read(paths[0])
    parts = [_part(paths[0], arrays, part) for part in ("train", "test")]
    (train_x, train_y), (test_x, test_y) = parts
    if train_x.shape[1:] != test_x.shape[1:]:
        raise DataError(
            f"data {paths[0]}: training and test images must have one shape, got "
            f"{train_x.shape[1:]} and {test_x.shape[1:]}"
        )
    channels = ("red", "green", "blue") if train_x.shape[1] == 3 else ("grey",)
    window = Window(channels, train_x.shape[3], train_x.shape[3], height=train_x.shape[2])
    own_name = NAMES.get(paths[0].name, name)
    classes = {"mnist": DIGITS, "fashion-mnist": CLOTHES}.get(name, OBJECTS)
    return Pool(own_name, window, classes, train_x, train_y, test_x, test_y)


def _read(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"data {path} cannot be read as a .npz file: {error}") from None


def _part(path: Path, arrays: dict[str, Array], part: str) -> tuple[Array, Array]:
    """Return the images and labels of a part, ``train`` or ``test``.

    Images are (n, channels, height, width) float32 in [0, 1], labels (n,) int64.
    """
    if f"{part}_jpeg" in arrays:
        arrays = {**arrays, f"x_{part}": _decode(path, arrays, part)}
    for key in (f"x_{part}", f"y_{part}"):
        if key not in arrays:
            raise DataError(
                f"data {path}: array {key!r} is missing. Its arrays: {', '.join(sorted(arrays))}."
            )
    images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
        raise DataError(
            f"data {path}: x_{part} must be uint8[n, height, width] or uint8[n, height, width, 3], "
            f"got {images.dtype}{list(images.shape)}"
        )
    if (
        labels.shape != (len(images),)
        or labels.dtype.kind not in "iu"
        or (len(labels) and not 0 <= labels.min() <= labels.max() < 10)
    ):
        raise DataError(
            f"data {path}: y_{part} must be {len(images)} class numbers from 0 to 9, got "
            f"{labels.dtype}{list(labels.shape)}"
        )
    images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    x = np.divide(images, 255, dtype=np.float32, order="C")
    return x, labels.astype(np.int64)


def _decode(path: Path, arrays: dict[str, Array], part: str) -> Array:
    """Return the images (n, height, width, 3) uint8 of consecutive JPEG files in one array."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DataError(
            f"data {path}: its images are JPEG files, which need the package Pillow: pip install "
            "pillow"
        ) from None
    try:
        payload, offsets = arrays[f"{part}_jpeg"].tobytes(), arrays[f"{part}_offsets"].tolist()
        images = [Image.open(io.BytesIO(payload[a:b])).convert("RGB") for a, b in pairwise(offsets)]
        return np.stack([np.asarray(image) for image in images])
    except (KeyError, OSError, UnidentifiedImageError, ValueError) as error:
        raise DataError(
            f"data {path}: {part}_jpeg and {part}_offsets must hold JPEG images of one size: "
            f"{error}"
        ) from None
