"""Image sets and pools from files, what is wrong with them, downloads from a local server, and the
picture of who holds what."""

import gzip
import hashlib
import io
import os
import struct
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.reports.pictures import draw_holdings
from simulation.datasets.catalog import NAMES, load, load_data
from simulation.datasets.download import (
    SOURCES,
    PublicDataSet,
    cifar_to_npz,
    download,
    idx_to_npz,
    inner_zip,
    read_idx,
)
from simulation.datasets.images import CLOTHES, DIGITS, FILES
from simulation.datasets.npz import load_npz
from simulation.datasets.pool import Pool, assign_alike, pool_of
from simulation.datasets.uci_har import load_uci_har
from simulation.datasets.windows import FleetData
from simulation.partition import partition, read_partition
from tests.support.fleets import synthetic_fleet
from wire.bundle import Window
from wire.errors import DataError

DATA = Path(os.environ.get("SHOAL_DATA", "/nonexistent"))


def write_images(path: Path, colours: bool = False, **changes: np.ndarray | None) -> None:
    """A file of 40 training and 20 test images of 6 x 5 pixels."""
    rng = np.random.default_rng(0)
    shape = (6, 5, 3) if colours else (6, 5)
    arrays: dict[str, np.ndarray | None] = {}
    for part, count in (("train", 40), ("test", 20)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        arrays[f"y_{part}"] = (np.arange(count) % 10).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        allow_pickle=False,
        **{k: v for k, v in {**arrays, **changes}.items() if v is not None},
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    return tmp_path


class TestImages:
    def test_grey_images_are_a_pool(self, folder: Path) -> None:
        write_images(folder / "mnist" / "mnist.npz")
        pool = load("mnist")
        assert isinstance(pool, Pool)
        assert (pool.name, pool.classes, pool.window) == (
            "mnist",
            DIGITS,
            Window(("grey",), 5, 5, height=6),
        )
        assert (pool.train_x.shape, pool.train_x.dtype) == ((40, 1, 6, 5), np.dtype(np.float32))
        with np.load(folder / "mnist" / "mnist.npz") as file:
            np.testing.assert_allclose(pool.test_x[:, 0] * 255, file["x_test"], rtol=1e-6)
        assert pool.train_y.dtype == np.int64

    def test_colours_come_first_and_a_file_beside_the_folder_is_found(self, folder: Path) -> None:
        write_images(folder / "cifar10.npz", colours=True)
        pool = load("cifar10")
        assert isinstance(pool, Pool)
        assert pool.window.channels == ("red", "green", "blue")
        assert pool.window.shape == pool.train_x.shape[1:] == (3, 6, 5)
        assert pool.train_x.flags.c_contiguous
        with np.load(folder / "cifar10.npz") as file:
            np.testing.assert_allclose(
                pool.train_x[7, 2] * 255, file["x_train"][7, :, :, 2], rtol=1e-6
            )

    def test_load_data_assigns_a_pool_to_twenty_devices_alike(self, folder: Path) -> None:
        write_images(folder / "fashion_mnist" / "fashion_mnist.npz")
        fleet, pool = load_data("fashion-mnist"), load("fashion-mnist")
        assert isinstance(pool, Pool)
        assert fleet.classes == CLOTHES
        assert [(w.num_train, w.num_test) for w in fleet.devices.values()] == [(2, 1)] * 20
        again = pool_of(fleet)
        assert sorted(x.tobytes() for x in again.train_x) == sorted(
            x.tobytes() for x in pool.train_x
        )
        np.testing.assert_allclose(
            fleet.channel_size(), [np.sqrt(np.square(pool.train_x).mean())], rtol=1e-5
        )

    def test_jpeg_files_in_one_array(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        arrays: dict[str, np.ndarray] = {}
        for part, count in (("train", 6), ("test", 4)):
            files = []
            for i in range(count):
                buffer = io.BytesIO()
                Image.fromarray(np.full((8, 8, 3), 20 * i, np.uint8)).save(
                    buffer, "JPEG", quality=95
                )
                files.append(buffer.getvalue())
            arrays[f"{part}_jpeg"] = np.frombuffer(b"".join(files), np.uint8)
            arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, files)])
            arrays[f"y_{part}"] = rng.integers(0, 10, count)
        (folder / "cifar10").mkdir()
        np.savez(folder / "cifar10" / "cifar10_jpeg_60k.npz", allow_pickle=False, **arrays)
        pool = load("cifar10")
        assert isinstance(pool, Pool)
        assert pool.name == "cifar10-jpeg"
        np.testing.assert_allclose(pool.train_x.mean((1, 2, 3)) * 255, 20 * np.arange(6), atol=3)
        arrays["test_jpeg"] = arrays["test_jpeg"][:-200]
        np.savez(folder / "cifar10" / "cifar10_jpeg_60k.npz", allow_pickle=False, **arrays)
        with pytest.raises(DataError, match="must hold JPEG images"):
            load("cifar10")

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"y_test": None}, "array 'y_test' is missing"),
            (
                {"x_train": np.zeros((40, 6, 5), np.float32)},
                r"x_train must be uint8.*, got float32\[40, 6, 5\]",
            ),
            (
                {"x_train": np.zeros((40, 6, 5, 4), np.uint8)},
                r"x_train must be uint8.*, got uint8\[40, 6, 5, 4\]",
            ),
            ({"x_test": np.zeros((20, 7, 5), np.uint8)}, "must have one shape"),
            ({"y_train": np.full(40, 10)}, "y_train must be 40 class numbers from 0 to 9"),
            ({"y_train": np.zeros(3, int)}, r"y_train must be .*, got int64\[3\]"),
        ],
    )
    def test_wrong_file_is_one_clear_error(
        self, folder: Path, changes: dict[str, np.ndarray | None], error: str
    ) -> None:
        write_images(folder / "mnist" / "mnist.npz", colours=False, **changes)
        with pytest.raises(DataError, match=error):
            load("mnist")

    def test_file_that_is_not_there_or_no_npz(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(DataError, match=r"has none of its files: mnist/mnist\.npz"):
            load("mnist")
        (folder / "mnist.npz").write_bytes(b"junk")
        with pytest.raises(DataError, match=r"cannot be read as a \.npz file"):
            load("mnist")
        monkeypatch.delenv("SHOAL_DATA")
        with pytest.raises(
            DataError, match="data 'mnist' is in the folder of SHOAL_DATA, which is not set"
        ):
            load("mnist")

    def test_every_name_has_a_line(self) -> None:
        assert set(NAMES) == {
            "watch",
            "watch-session",
            "uci-har",
            "geotec-phone",
            "geotec-watch",
            *FILES,
        }

    @pytest.mark.parametrize(
        ("name", "shape", "sizes"),
        [
            ("mnist", (1, 28, 28), (60_000, 10_000)),
            ("fashion-mnist", (1, 28, 28), (60_000, 10_000)),
            ("cifar10-5k", (3, 32, 32), (4000, 1000)),
        ],
    )
    def test_real_sets(self, name: str, shape: tuple[int, ...], sizes: tuple[int, int]) -> None:
        if not any((DATA / file).exists() for file in FILES[name]):
            pytest.skip(f"SHOAL_DATA names no folder with {FILES[name][0]}; that would run this")
        pool = load(name)
        assert isinstance(pool, Pool)
        assert pool.window.shape == pool.train_x.shape[1:] == shape
        assert (len(pool.train_y), len(pool.test_y)) == sizes
        assert (pool.train_x.min(), pool.train_x.max()) == (0, 1)
        assert set(pool.test_y.tolist()) == set(range(10))


class TestPoolsFromNpz:
    def write(self, path: Path, images: bool, **changes: np.ndarray) -> None:
        rng = np.random.default_rng(0)
        shape = (40, 2, 6, 5) if images else (40, 2, 16)
        arrays: dict[str, np.ndarray] = {
            "X": rng.normal(size=shape).astype(np.float32),
            "y": np.arange(40) % 4,
            **changes,
        }
        np.savez(path, allow_pickle=False, **arrays)

    @pytest.mark.parametrize("images", [True, False])
    def test_file_without_subjects_is_a_pool(self, tmp_path: Path, images: bool) -> None:
        self.write(tmp_path / "mine.npz", images)
        pool = load(str(tmp_path / "mine.npz"))
        assert isinstance(pool, Pool)
        assert pool.window.shape == pool.train_x.shape[1:] == ((2, 6, 5) if images else (2, 16))
        assert (len(pool.train_y), len(pool.test_y)) == (32, 8)
        assert np.bincount(pool.test_y).tolist() == [2, 2, 2, 2]
        assert len(load_data(str(tmp_path / "mine.npz")).devices) == 20

    def test_split_is_used(self, tmp_path: Path) -> None:
        self.write(tmp_path / "mine.npz", True, split=np.array(["test"] * 10 + ["train"] * 30))
        pool = load_npz(tmp_path / "mine.npz")
        assert isinstance(pool, Pool)
        assert (len(pool.train_y), len(pool.test_y)) == (30, 10)

    def test_images_with_subjects_are_a_fleet(self, tmp_path: Path) -> None:
        self.write(tmp_path / "mine.npz", True, subject=np.arange(40) // 20)
        fleet = load_npz(tmp_path / "mine.npz")
        assert isinstance(fleet, FleetData)
        assert fleet.devices["s00"].train_x.shape[1:] == (2, 6, 5) == fleet.window.shape
        assert fleet.channel_size().shape == (2,)

    def test_uci_har_needs_subjects(self, tmp_path: Path) -> None:
        self.write(tmp_path / "uci_har.npz", False)
        with pytest.raises(DataError, match="array 'subject' is missing"):
            load_uci_har(tmp_path / "uci_har.npz")

    def test_too_few_examples_for_a_fleet(self) -> None:
        pool = pool_of(synthetic_fleet(1, num_windows=6))
        with pytest.raises(DataError, match="6 training examples for 20 devices"):
            assign_alike(pool)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a server of a folder on this machine, and the folder."""
    served = tmp_path / "served"
    served.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served))) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", served
        http.shutdown()
        thread.join()


def idx(array: np.ndarray) -> bytes:
    return gzip.compress(
        b"\0\0\x08"
        + bytes([array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


class TestDownload:
    def test_what_comes_is_what_is_loaded(self, server: tuple[str, Path], folder: Path) -> None:
        address, served = server
        rng = np.random.default_rng(0)
        parts = [
            rng.integers(0, 10, shape, dtype=np.uint8)
            for shape in ((30, 4, 4), (30,), (10, 4, 4), (10,))
        ]
        files = {}
        for i, part in enumerate(parts):
            (served / f"{i}.gz").write_bytes(idx(part))
            files[f"{address}/{i}.gz"] = hashlib.sha256(idx(part)).hexdigest()
        sources = {
            "mnist": PublicDataSet(
                files, "mnist/mnist.npz", lambda payloads: idx_to_npz(payloads, DIGITS)
            )
        }
        path = download("mnist", folder, sources)
        assert path == folder / "mnist" / "mnist.npz"
        pool = load("mnist")
        assert isinstance(pool, Pool)
        np.testing.assert_allclose(pool.train_x[:, 0] * 255, parts[0], rtol=1e-6)
        np.testing.assert_array_equal(pool.test_y, parts[3])
        for file in served.iterdir():
            file.unlink()
        assert download("mnist", folder, sources) == path  # what is there is not fetched again
        assert [p.name for p in path.parent.iterdir()] == ["mnist.npz"]

    def test_another_file_than_was_published_is_refused(
        self, server: tuple[str, Path], folder: Path
    ) -> None:
        address, served = server
        (served / "x").write_bytes(b"something else")
        with pytest.raises(DataError, match=r"must have SHA-256 0000.*, got [0-9a-f]{64}"):
            download(
                "x", folder, {"x": PublicDataSet({f"{address}/x": "0" * 64}, "x.npz", b"".join)}
            )
        assert not (folder / "x.npz").exists()

    def test_no_such_page_and_no_connection(self, server: tuple[str, Path], folder: Path) -> None:
        address, _ = server
        with pytest.raises(DataError, match=r"404.*copy the data to"):
            download(
                "x", folder, {"x": PublicDataSet({f"{address}/x": "0" * 64}, "x.npz", b"".join)}
            )
        with pytest.raises(DataError, match="Without a connection, copy the data to"):
            download(
                "x",
                folder,
                {"x": PublicDataSet({"http://127.0.0.1:9/x": "0" * 64}, "x.npz", b"".join)},
            )
        with pytest.raises(
            DataError,
            match=r"No download 'imagenet'\. Known downloads: uci-har, mnist, fashion-mnist, "
            r"cifar10",
        ):
            download("imagenet", folder)

    def test_layout_that_is_not_the_published_one(
        self, server: tuple[str, Path], folder: Path
    ) -> None:
        address, served = server
        (served / "x").write_bytes(b"junk")
        digest = hashlib.sha256(b"junk").hexdigest()
        for convert in (lambda p: idx_to_npz(p * 4, DIGITS), cifar_to_npz, inner_zip):
            with pytest.raises(DataError, match="does not have the expected layout"):
                download(
                    "x", folder, {"x": PublicDataSet({f"{address}/x": digest}, "x.npz", convert)}
                )

    def test_idx_of_another_type(self) -> None:
        with pytest.raises(ValueError, match="must begin with 00 00 08, got 00 00 0d"):
            read_idx(gzip.compress(b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0"))

    def test_cifar_binary(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        image = rng.integers(0, 256, (3, 32, 32), dtype=np.uint8)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
                record = (bytes([7]) + image.tobytes()) * 2
                entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                entry.size = len(record)
                archive.addfile(entry, io.BytesIO(record))
        with np.load(io.BytesIO(cifar_to_npz([buffer.getvalue()]))) as file:
            assert file["x_train"].shape == (10, 32, 32, 3)
            np.testing.assert_array_equal(file["x_test"][1], image.transpose(1, 2, 0))
            assert file["y_train"].tolist() == [7] * 10

    def test_zip_in_a_zip(self) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("UCI HAR Dataset.zip", b"inner")
        assert inner_zip([buffer.getvalue()]) == b"inner"

    def test_targets_are_where_the_loaders_look(self) -> None:
        assert {name: source.target for name, source in SOURCES.items() if name in FILES} == {
            name: FILES[name][0] for name in ("mnist", "fashion-mnist", "cifar10")
        }
        assert all(
            len(digest) == 64 for source in SOURCES.values() for digest in source.files.values()
        )


class TestPicture:
    def size(self, path: Path) -> tuple[int, int]:
        with Image.open(path) as image:
            return image.size

    def test_picture_of_every_kind_of_fleet(self, tmp_path: Path) -> None:
        fleet = synthetic_fleet()
        small = partition(fleet, read_partition("dirichlet:devices=3"), 0)
        large = partition(
            synthetic_fleet(30), read_partition("pathological:devices=90:classes=1"), 0
        )
        for i, one in enumerate([fleet, small, large]):
            width, height = self.size(draw_holdings(tmp_path / f"{i}.png", one))
            assert width > 200
            assert height > 100

    def test_classes_that_nobody_holds_leave_their_row_empty(self, tmp_path: Path) -> None:
        fleet = synthetic_fleet()
        more = FleetData(
            fleet.name, fleet.window, (*fleet.classes, "never"), fleet.devices, fleet.truth
        )
        assert (
            self.size(draw_holdings(tmp_path / "more.png", more))[1]
            > self.size(draw_holdings(tmp_path / "plain.png", fleet))[1]
        )
