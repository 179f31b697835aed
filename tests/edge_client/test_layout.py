"""Mistakes in the layout of arrays are told, by the reader that boards and simulations share."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_client.core.ports import Windows
from edge_client.data.layout import examples, fitting, windows_for
from edge_client.data.windows import channels_of, load_folder
from edge_client.models.loaded import check_windows
from edge_client.work.executor import Executor
from simulation.contract.fleet import make_field
from simulation.datasets.catalog import load_data
from simulation.datasets.device_folders import load_device_folders
from simulation.datasets.windows import FleetData
from tests.wire.label_vectors import manifest_of
from wire.bundle import Window
from wire.errors import DataError

COUNT = 24
LABELS = np.arange(COUNT) % 3


def windows(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=(COUNT, *shape)) * 50).astype(dtype)


def with_value(value: float, *place: int) -> np.ndarray:
    made = windows(2, 16, dtype=np.float64)
    made[place] = made[COUNT - 1, 0, 0] = value
    return made


WRONG = [
    (
        windows(128, 9),
        "128 channels of 9 samples, likely 9 channels of 128 samples: use X.transpose(0, 2, 1); if "
        "it is right, give channel_",
    ),
    (
        windows(28, 28),
        "images are [n, 1, 28, 28]: use X[:, None]; for windows of 28 channels, give channel_names",
    ),
    (
        windows(28, 28, 1),
        "images with colours last, expected [n, channels, height, width]: use X.transpose(0, 3, "
        "1, 2)",
    ),
    (windows(32, 32, 3), "images with colours last"),
    (windows(16), "windows of one channel are [n, 1, time]: use X[:, None, :]"),
    (
        with_value(np.nan, 7, 1, 5),
        "2 of 24 windows have others; the first is nan at window 7, channel 1, sample 5",
    ),
    (
        with_value(-np.inf, 0, 0, 3),
        "2 of 24 windows have others; the first is -inf at window 0, channel 0, sample 3",
    ),
    (with_value(1e300, 2, 0, 0), "first is 1e+300, which float32 cannot hold at window 2"),
    (windows(2, 16).astype("U8"), "expected float[n, channels, time]"),
    (windows(2, 16) > 0, "expected float[n, channels, time]"),
]


@pytest.mark.parametrize(("x", "told"), WRONG)
@pytest.mark.parametrize("kind", ["npz", "board"])
def test_arrays_in_another_layout_are_told_what_is_likely_meant(
    tmp_path: Path, kind: str, x: np.ndarray, told: str
) -> None:
    np.savez(tmp_path / "train.npz", X=x, y=LABELS)
    with np.errstate(all="ignore"), pytest.raises(DataError) as error:
        load_data(str(tmp_path / "train.npz")) if kind == "npz" else load_folder(tmp_path)
    assert told in str(error.value)
    assert str(tmp_path / "train.npz") in str(error.value)


@pytest.mark.parametrize("shape", [(128, 9), (28, 28)])
def test_what_looks_like_a_mistake_can_be_said_outright(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    names = [f"electrode {i}" for i in range(shape[0])]
    np.savez(
        tmp_path / "train.npz", X=windows(*shape), y=LABELS, channel_names=names, subject=LABELS
    )
    data = load_data(str(tmp_path / "train.npz"))
    assert (data.window.shape, list(data.window.channels)) == (shape, names)
    assert load_folder(tmp_path).train_x.shape[1:] == shape
    assert channels_of(tmp_path) == tuple(names)


@pytest.mark.parametrize("shape", [(9, 128), (1, 4), (6, 6), (1, 28, 28), (3, 32, 32), (2, 6, 5)])
def test_usual_layouts_are_taken(shape: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    x = windows(*shape)
    np.testing.assert_array_equal(examples(x, "here"), x)
    assert caplog.messages == []


def test_windows_of_different_lengths_are_one_clear_error(tmp_path: Path) -> None:
    uneven = np.empty(COUNT, object)
    uneven[:] = [[0.0] * (16 + i) for i in range(COUNT)]
    with pytest.raises(DataError, match="its windows differ in length"):
        examples(uneven, "here")
    np.savez(tmp_path / "train.npz", X=uneven, y=LABELS)
    with pytest.raises(
        DataError,
        match=r"windows of different lengths are one array where they are padded, with lengths "
        r"\(n,\) int; or give recordings",
    ):
        load_data(str(tmp_path / "train.npz"))
    with pytest.raises(
        DataError, match=r"windows are one array .*, padded to the longest, with lengths"
    ):
        load_folder(tmp_path)


def test_whole_numbers_are_measurements_unless_a_bundle_asks_for_ids_and_their_range_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        made = examples(np.arange(COUNT * 32).reshape(COUNT, 2, 16), "data here")
    assert made.dtype == np.int64
    assert fitting(made, Window(("a", "b"), 16, 16), "data here").dtype == np.float32
    assert caplog.messages == [
        "data here: X is int64[24, 2, 16]: whole numbers from 0 to 767 count as measurements "
        "unless the bundle has ids"
    ]


class TestLabels:
    def load(self, folder: Path, y: np.ndarray, **more: Any) -> FleetData:
        np.savez(
            folder / "own.npz", X=windows(2, 16), y=y, **{"subject": np.arange(COUNT) // 12, **more}
        )
        return load_data(str(folder / "own.npz"))

    @pytest.mark.parametrize(
        ("y", "classes"),
        [
            (LABELS, ("0", "1", "2")),
            (LABELS + 1, ("1", "2", "3")),
            (LABELS * 100, ("0", "100", "200")),
            (np.array(["walk", "sit", "run"])[LABELS], ("run", "sit", "walk")),
            (np.array([b"walk", b"sit", b"run"])[LABELS], ("run", "sit", "walk")),
        ],
    )
    def test_those_that_occur_are_the_classes_and_keep_their_names(
        self, tmp_path: Path, y: np.ndarray, classes: tuple[str, ...]
    ) -> None:
        data = self.load(tmp_path, y)
        assert data.classes == classes
        text = [
            label.decode() if isinstance(label, bytes) else str(label) for label in y[:12].tolist()
        ]
        own = data.devices["s00"]
        assert sorted(classes[i] for i in [*own.train_y, *own.test_y]) == sorted(text)

    def test_it_is_said_that_numbers_are_mapped(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.load(tmp_path, LABELS)
        assert caplog.messages == []
        self.load(tmp_path, LABELS * 100)
        assert caplog.messages == [
            "Labels 0, 100, 200 become the classes 0 to 2, and keep their names"
        ]

    def test_names_of_classes_are_counted_from_zero(self, tmp_path: Path) -> None:
        names = ["sit", "stand", "walk"]
        assert self.load(tmp_path, LABELS, activity_names=names).classes == tuple(names)
        assert (
            self.load(tmp_path, np.array(names)[LABELS], activity_names=names)
            .devices["s00"]
            .train_y.max()
            == 2
        )
        with pytest.raises(
            DataError,
            match=r"3 class names, and y has class numbers 1 to 3\. They seem to be counted from "
            r"1: store y - 1",
        ):
            self.load(tmp_path, LABELS + 1, activity_names=names)
        with pytest.raises(DataError, match=r"no class 'run'. Known classes: sit, stand, walk"):
            self.load(tmp_path, np.array(["sit", "run", "walk"])[LABELS], activity_names=names)

    @pytest.mark.parametrize(
        ("y", "told"),
        [
            (LABELS[:, None], "expected int[24]: use y[:, 0]"),
            (np.where(LABELS > 1, np.nan, LABELS), "y must hold finite numbers, got nan at window"),
            (
                np.eye(3, dtype=int)[LABELS] * -2,
                "int[24, names] of 0 and 1, int[24, steps] from -1, or float[24, quantities]",
            ),
            (LABELS[:5], "expected int[24]"),
            (LABELS - 1, "must hold class numbers from 0"),
        ],
    )
    def test_others_are_one_clear_error(self, tmp_path: Path, y: np.ndarray, told: str) -> None:
        with pytest.raises(DataError) as error:
            self.load(tmp_path, y)
        assert told in str(error.value)

    def test_subjects_are_numbers_or_names(self, tmp_path: Path) -> None:
        people = np.array(["Zoë", "ann", "b c"])[np.arange(COUNT) // 8]
        assert sorted(self.load(tmp_path, LABELS, subject=people).devices) == ["Zo-", "ann", "b-c"]
        with pytest.raises(DataError, match="two subjects' names give the same device id"):
            self.load(tmp_path, LABELS, subject=np.array(["a b", "a-b"])[np.arange(COUNT) // 12])
        with pytest.raises(
            DataError, match=r"subject must be int\[24\] or str\[24\], got float64\[24\]"
        ):
            self.load(tmp_path, LABELS, subject=LABELS.astype(float))


class TestBoards:
    def test_names_of_labels_need_the_list_of_classes(self, tmp_path: Path) -> None:
        named = np.array(["walk", "sit", "run"])[LABELS]
        np.savez(tmp_path / "train.npz", X=windows(2, 16), y=named)
        with pytest.raises(
            DataError,
            match=r"y holds names such as 'walk', .* list them in classes.txt, one on each line",
        ):
            load_folder(tmp_path)
        (tmp_path / "classes.txt").write_text("run\nsit\nwalk\n")
        assert load_folder(tmp_path).train_y[:3].tolist() == [2, 1, 0]

    def test_windows_of_another_shape_than_the_bundles_are_told_what_is_likely_meant(self) -> None:
        field = make_field("fedavg", num_devices=1)
        own = field.executors["d0"]._windows
        turned = Windows(
            own.train_x.transpose(0, 2, 1), own.train_y, own.test_x.transpose(0, 2, 1), own.test_y
        )
        with pytest.raises(
            DataError,
            match=r"for bundle tiny, got .*; they are likely transposed: use X.transpose\(0, 2, "
            r"1\)",
        ):
            Executor(field.bundle, field.executors["d0"]._graphs, turned)
        with pytest.raises(
            DataError,
            match=r"x must be numbers of shape \(n, 2, 16\), got .*; they are likely transposed",
        ):
            check_windows(turned.train_x, (2, 16))
        counted = Windows(own.train_x, own.train_y + 1, own.test_x, own.test_y + 1)
        with pytest.raises(
            DataError,
            match=r"train labels must be from 0 to 2, the classes of bundle tiny \(a, b, c\), "
            r"got 1 to 3",
        ):
            Executor(field.bundle, field.executors["d0"]._graphs, counted)

    @pytest.mark.parametrize(
        ("y", "told"),
        [
            (
                LABELS + 1,
                "labels are 1, 2, 3, so 1 of 4 classes have no example. Count classes from 0, or "
                "list their names in classes.txt",
            ),
            (LABELS * 100, "labels are 0, 100, 200, so 198 of 201 classes have no example"),
        ],
    )
    def test_a_simulation_of_their_folders_refuses_empty_classes_that_devices_would_have_too(
        self, tmp_path: Path, y: np.ndarray, told: str
    ) -> None:
        (tmp_path / "pi-1").mkdir()
        np.savez(
            tmp_path / "pi-1" / "train.npz", X=windows(2, 16), y=y, channel_names=["left", "right"]
        )
        with pytest.raises(DataError) as error:
            load_device_folders(tmp_path)
        assert told in str(error.value)
        (tmp_path / "pi-1" / "classes.txt").write_text(
            "\n".join(f"class {i}" for i in range(int(y.max()) + 1))
        )
        data = load_device_folders(tmp_path)
        assert (len(data.classes), data.window.channels) == (int(y.max()) + 1, ("left", "right"))

    def test_devices_with_other_channels_are_refused(self, tmp_path: Path) -> None:
        rows = [f"{i % 7},{i % 5 + 100},0" for i in range(600)]
        for name, header in (("pi-1", "ax,ay,label"), ("pi-2", "ay,ax,label")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "a.csv").write_text("\n".join([header, *rows]))
        fleet = load_device_folders(tmp_path)
        assert fleet.window.channels == ("ax", "ay")
        assert fleet.devices["pi-1"].train_x[:, 1].min() == 100
        assert fleet.devices["pi-2"].train_x[:, 0].min() == 100, "columns are taken by name"
        (tmp_path / "pi-2" / "a.csv").write_text("\n".join(["ay,az,label", *rows]))
        with pytest.raises(
            DataError, match="got ax, ay for device pi-1 and ay, az for device pi-2"
        ):
            load_device_folders(tmp_path)

    def test_a_recording_says_where_a_value_is_not_finite(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("ax,ay,label\n1,2,0\n1,-inf,0\n")
        with pytest.raises(DataError, match=r"line 3, column ay must hold finite values, got -inf"):
            load_folder(tmp_path)


MANIFEST = msgspec.structs.replace(
    manifest_of("classification", 0),
    window=Window(("ax", "ay", "az"), 4, 4, 50.0),
    classes=("run", "sit", "walk"),
)


def named_windows(
    channels: tuple[str, ...], classes: tuple[str, ...], rate_hz: float = 0.0
) -> Windows:
    """Two windows, whose channels hold their own places and whose classes are 0 and 1."""
    x = np.broadcast_to(
        np.arange(len(channels), dtype=np.float32)[None, :, None], (2, len(channels), 4)
    )
    y = np.arange(2)
    return Windows(x, y, x, y, channels=channels, classes=classes, rate_hz=rate_hz)


@pytest.mark.parametrize(
    ("channels", "places"),
    [
        (("ax", "ay", "az"), [0, 1, 2]),
        (("az", "ay", "ax"), [2, 1, 0]),
        (("gx", "ay", "az", "ax"), [3, 1, 2]),
        ((), None),
    ],
)
def test_channels_are_taken_by_name(channels: tuple[str, ...], places: list[int] | None) -> None:
    fitted = windows_for(MANIFEST, named_windows(channels, ()))
    assert places is None or fitted.train_x[0, :, 0].tolist() == places


@pytest.mark.parametrize(
    ("classes", "numbers"),
    [
        (("walk", "run"), [2, 0]),
        (("run", "sit", "walk"), [0, 1]),
        ((), [0, 1]),
        (("0", "1"), [0, 1]),
    ],
)
def test_classes_are_taken_by_name(classes: tuple[str, ...], numbers: list[int]) -> None:
    fitted = windows_for(MANIFEST, named_windows(("ax", "ay", "az"), classes))
    assert fitted.train_y.tolist() == fitted.test_y.tolist() == numbers
    assert windows_for(MANIFEST, fitted).train_y.tolist() == numbers, "twice is the same"


def test_class_numbers_are_names_where_those_of_the_bundle_are() -> None:
    manifest = msgspec.structs.replace(MANIFEST, classes=("1", "2", "3"))
    numbers = ("0", "1", "2", "3")
    windows = replace(named_windows(("ax", "ay", "az"), numbers), train_y=np.array([3, 1]))
    windows = replace(windows, test_y=np.array([2, 3]))
    assert windows_for(manifest, windows).train_y.tolist() == [2, 0]


def test_class_numbers_of_recordings_are_names_too(tmp_path: Path) -> None:
    for label in (1, 4):
        rows = [f"{i / 50},{i % 7},{i % 5},{i % 3},{label}" for i in range(64)]
        (tmp_path / f"{label}.csv").write_text("\n".join(["t,ax,ay,az,label", *rows]))
    windows = load_folder(tmp_path, 4, 4)
    manifest = msgspec.structs.replace(MANIFEST, classes=("1", "2", "4", "5"))
    assert sorted({*windows_for(manifest, windows).train_y.tolist()}) == [0, 2]


@pytest.mark.parametrize(
    ("windows", "error"),
    [
        (
            named_windows(("ax", "ay"), ()),
            r"needs channel 'az' \(ax, ay, az\), and the data have ax, ay",
        ),
        (
            named_windows(("ax", "ay", "az"), ("walk", "swim")),
            "no class 'swim' in bundle .*Known classes: run, sit, walk",
        ),
        (
            named_windows(("ax", "ay", "az"), (), 100.0),
            "needs 50 samples a second, and the data have 100.*rate = 50",
        ),
    ],
)
def test_data_that_do_not_fit_a_bundle_are_refused(windows: Windows, error: str) -> None:
    with pytest.raises(DataError, match=error):
        windows_for(MANIFEST, windows)
