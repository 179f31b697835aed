"""The phones and watches of sp-sw-har-dataset, from files of its layout."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulation.datasets.catalog import load_data
from simulation.datasets.geotec import ACTIVITIES, CHANNELS, FOLDER, LENGTH, STRIDE, load_geotec
from simulation.splits import read_split, split_anew
from wire.errors import DataError

HEADER = ",".join((*CHANNELS, "timestamp", "label"))


def write_walk(
    folder: Path, person: str, walk: int, side: str, samples: int, header: str = HEADER
) -> Path:
    """A file in which each activity lasts `samples`, and a sample's first channel is its number."""
    path = folder / "DATA" / person / f"{person}_{walk:02d}_{side}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = [activity for activity in ACTIVITIES for _ in range(samples)]
    rows = [
        f"{number},0.5,1.5,-2.5,3.5,4.5,{1_657_533_977_810 + 10 * number},{label}"
        for number, label in enumerate(labels)
    ]
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


class TestLoadGeotec:
    def test_a_device_for_each_person_and_windows_of_one_activity(self, tmp_path: Path) -> None:
        for person in ("s01", "s02"):
            for walk in (1, 2):
                write_walk(tmp_path, person, walk, "sp", 320)
            write_walk(tmp_path, person, 1, "sw", 640)
        phone, watch = load_geotec(tmp_path, "phone"), load_geotec(tmp_path, "watch")
        assert phone.classes == ACTIVITIES
        assert phone.window.channels == CHANNELS
        assert (phone.window.length, phone.window.stride, phone.window.rate_hz) == (
            LENGTH,
            STRIDE,
            100.0,
        )
        assert sorted(phone.devices) == sorted(watch.devices) == ["s01", "s02"]
        held = phone.recordings["s01"]
        # two walks of 5 * 320 samples: 9 whole windows of each activity fit, none across a change
        assert len(held.x) == 2 * len(ACTIVITIES) * 9
        assert held.session is not None
        assert held.start is not None
        assert set(held.session.tolist()) == {0, 1}
        assert held.x[:, 0, 0].tolist() == held.start.tolist()
        assert (held.y == held.start // 320).all()
        assert (held.start % 320 + LENGTH <= 320).all()

    def test_no_sample_of_the_test_part_is_in_the_training_part(self, tmp_path: Path) -> None:
        write_walk(tmp_path, "s01", 1, "sp", 640)
        windows = load_geotec(tmp_path, "phone").devices["s01"]
        train, test = (
            set(x[:, 0].astype(int).ravel().tolist()) for x in (windows.train_x, windows.test_x)
        )
        assert windows.num_test >= len(ACTIVITIES)
        assert not train & test

    def test_whole_walks_can_be_held_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for walk in (1, 2, 3, 4):
            write_walk(tmp_path / FOLDER, "s01", walk, "sp", 320)
        monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
        split = split_anew(load_data("geotec-phone"), read_split("session"), 0)
        windows = split.devices["s01"]
        assert windows.num_train
        assert windows.num_test
        assert windows.num_train + windows.num_test == len(
            load_data("geotec-phone").recordings["s01"].x
        )

    @pytest.mark.parametrize(
        ("break_it", "message"),
        [
            (
                lambda path: path.write_text(path.read_text().replace("z_gyro", "gyro")),
                "the header must be .*,timestamp,label, got x_acc,.*,gyro,timestamp,label",
            ),
            (
                lambda path: path.write_text(path.read_text().replace("WALKING", "RUNNING")),
                "RUNNING",
            ),
            (
                lambda path: path.write_text(path.read_text() + "1,2\n"),
                r"s01_01_sp\.csv cannot be read: the number of columns changed from 8 to 2",
            ),
            (
                lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()),
                r"s01_01_sp\.csv cannot be read: 'utf-8' codec can't decode",
            ),
            (lambda path: path.unlink(), r"has no files such as DATA/s01/s01_01_sp\.csv"),
        ],
    )
    def test_a_file_of_another_layout_is_named(
        self, tmp_path: Path, break_it: Callable[[Path], object], message: str
    ) -> None:
        break_it(write_walk(tmp_path, "s01", 1, "sp", 64))
        with pytest.raises(DataError, match=message):
            load_geotec(tmp_path, "phone")

    def test_what_to_do_where_it_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
        with pytest.raises(
            DataError,
            match=rf"has no {FOLDER}\. Run there: git clone https://github.com/GeoTecINIT/{FOLDER}",
        ):
            load_data("geotec-watch")

    def test_values_are_those_of_the_file(self, tmp_path: Path) -> None:
        write_walk(tmp_path, "s01", 1, "sp", 320)
        x = load_geotec(tmp_path, "phone").recordings["s01"].x
        np.testing.assert_array_equal(
            x[:, 1:, 0], np.tile(np.array([0.5, 1.5, -2.5, 3.5, 4.5], np.float32), (len(x), 1))
        )
