"""Data folders in every form that a device may have, and those that cannot be used."""

from pathlib import Path

import numpy as np
import pytest

from edge_client.data.windows import load_folder, read_windows
from wire.bundle import Window
from wire.errors import DataError


class TestDataFolder:
    def test_npz(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "train.npz", X=np.zeros((5, 2, 8), np.float32), y=np.arange(5) % 2)
        np.savez(tmp_path / "test.npz", X=np.zeros((3, 2, 8), np.float32), y=np.zeros(3, int))
        windows = load_folder(tmp_path)
        assert (windows.num_train, windows.num_test) == (5, 3)

    def test_npy_keeps_the_last_quarter_of_each_class_for_test(self, tmp_path: Path) -> None:
        np.save(tmp_path / "X.npy", np.arange(16, dtype=np.float32).reshape(16, 1, 1))
        np.save(tmp_path / "y.npy", np.repeat([0, 1], 8))
        assert load_folder(tmp_path).test_x.ravel().tolist() == [6, 7, 14, 15]

    def test_recordings_are_split_in_time_without_a_shared_sample(self, tmp_path: Path) -> None:
        (tmp_path / "classes.txt").write_text("rest\nwalk\n")
        rows = [f"{i},{i},0,{'walk' if i >= 100 else 'rest'}" for i in range(200)]
        (tmp_path / "one.csv").write_text("\n".join(["t,ax,ay,label", *rows]))
        windows = load_folder(tmp_path, length=16, stride=8)
        assert windows.train_x.shape[1:] == (2, 16)
        for label in (0, 1):
            last = windows.train_x[windows.train_y == label][:, 0].max()
            first = windows.test_x[windows.test_y == label][:, 0].min()
            assert first - last > 16, "a window's length lies between the parts of each class"
        assert set(windows.train_y.tolist()) == {0, 1}
        assert all((w < 100).all() or (w >= 100).all() for w in windows.train_x[:, 0])

    @pytest.mark.parametrize(
        ("files", "error"),
        [
            ({}, "must have train.npz"),
            ({"train.npz": "junk"}, "train.npz"),
            (
                {"a.csv": "x,y\n1,2"},
                "no recording has 128 consecutive samples with the same label, or without",
            ),
            ({"a.csv": "x,label\n1,-1"}, "line 2.*class number must be .*, got -1"),
            (
                {"unlabelled.npz": "junk"},
                "unlabelled.npz: an array holds Python objects or is cut off",
            ),
            ({"a.csv": "x,label\n1,0.5"}, "line 2"),
            ({"a.csv": "x,label\n1,0\none,0"}, "line 3, column x: 'one' is not a number"),
            ({"a.csv": "x,label\n1,0\n2"}, "line 3"),
            ({"a.csv": "x,label\nnan,0"}, "names no channel .*'x': empty"),
            ({"a.csv": "x,label\ninf,0"}, "line 2, column x must hold finite values, got inf"),
            ({"a.csv": "x,label\n1,0", "b.csv": "z,label\n1,0"}, "channels"),
            (
                {"a.csv": "x,label\n1,0"},
                "no recording has 128 consecutive samples with the same label, or without labels",
            ),
        ],
    )
    def test_unusable_folder_is_one_clear_error(
        self, tmp_path: Path, files: dict[str, str], error: str
    ) -> None:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=error):
            load_folder(tmp_path)

    def test_windows_without_labels_beside_others_or_alone(self, tmp_path: Path) -> None:
        x = np.random.default_rng(0).normal(size=(7, 2, 8)).astype(np.float32)
        np.savez(tmp_path / "unlabelled.npz", X=x)
        alone = load_folder(tmp_path)
        assert (alone.num_train, alone.num_test, alone.train_x.shape, alone.test_x.shape) == (
            0,
            0,
            (0, 2, 8),
            (0, 2, 8),
        )
        assert np.array_equal(alone.unlabelled_x, x)
        np.savez(tmp_path / "test.npz", X=x[:3], y=np.zeros(3, int))
        assert load_folder(tmp_path).num_test == 3
        np.savez(tmp_path / "train.npz", X=x[:5], y=np.arange(5) % 2)
        beside = load_folder(tmp_path)
        assert (beside.num_train, beside.num_test, len(beside.unlabelled_x)) == (5, 3, 7)

    @pytest.mark.parametrize(
        "files", [("train.npz",), ("unlabelled.npz",), ("train.npz", "unlabelled.npz")]
    )
    def test_no_windows_of_a_shape_that_is_known(
        self, tmp_path: Path, files: tuple[str, ...]
    ) -> None:
        for name in files:
            np.savez(tmp_path / name, X=np.zeros((0, 3, 32)), y=[])
        windows = load_folder(tmp_path)
        assert (windows.train_x.shape, windows.num_test, windows.num_unlabelled) == (
            (0, 3, 32),
            0,
            0,
        )
        assert windows.train_x.dtype == np.float32
        assert windows.train_y.dtype == np.int64

    def test_recordings_without_a_label_for_a_while_or_at_all(self, tmp_path: Path) -> None:
        rows = [f"{i},{'' if i < 80 else 1}" for i in range(160)]
        (tmp_path / "some.csv").write_text("\n".join(["x,label", *rows]))
        windows = load_folder(tmp_path, length=8, stride=8)
        assert (
            windows.train_x[:, 0].min(),
            windows.train_x[:, 0].max(),
            windows.test_x[:, 0].min(),
        ) == (80, 135, 144)
        assert (windows.unlabelled_x[:, 0].min(), windows.unlabelled_x[:, 0].max()) == (0, 79)
        (tmp_path / "some.csv").unlink()
        (tmp_path / "none.csv").write_text("\n".join(["x", *map(str, range(160))]))
        none = load_folder(tmp_path, length=8, stride=8)
        assert (none.num_train, none.num_test, len(none.unlabelled_x)) == (0, 0, 20)
        np.savez(tmp_path / "unlabelled.npz", X=np.zeros((3, 1, 8), np.float32))
        assert len(load_folder(tmp_path, length=8, stride=8).unlabelled_x) == 23

    @pytest.mark.parametrize(
        ("x", "error"),
        [
            (
                np.zeros((3, 2, 9), np.float32),
                r"windows of unlabelled.npz must have the shape of the others, got \(2, 9\) and "
                r"\(2, 8\)",
            ),
            (np.zeros((3, 2), np.float32), r"X is float32\[3, 2\]"),
            (np.full((3, 2, 8), np.nan, np.float32), "must hold finite values"),
            (np.float32(1), "X is float32"),
        ],
        ids=["another shape", "no windows", "no numbers", "no array"],
    )
    def test_windows_without_labels_that_cannot_be_used(
        self, tmp_path: Path, x: np.ndarray, error: str
    ) -> None:
        np.savez(tmp_path / "train.npz", X=np.zeros((5, 2, 8), np.float32), y=np.arange(5) % 2)
        np.savez(tmp_path / "unlabelled.npz", X=x)
        with pytest.raises(DataError, match=error):
            load_folder(tmp_path)

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no such folder"):
            load_folder(tmp_path / "x")


class TestRecordingToPredict:
    WINDOW = Window(("a", "b"), 4, 2, 50.0)

    def test_a_recording_of_a_spreadsheet(self, tmp_path: Path) -> None:
        """Recordings may have a byte order mark, blanks around names, and empty lines."""
        path = tmp_path / "x.csv"
        rows = "".join(f"{number}, {-number}\r\n" for number in range(6))
        path.write_bytes(b"\xef\xbb\xbf" + f" a , b\r\n\r\n{rows}".encode())
        x = read_windows(path, self.WINDOW)
        assert x.tolist() == [[[0, 1, 2, 3], [0, -1, -2, -3]], [[2, 3, 4, 5], [-2, -3, -4, -5]]]

    def test_a_recording_that_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_bytes(b"a,b\n\0\1\2,1\n")
        with pytest.raises(DataError, match=r"x\.csv is no text: it has a byte of zero at 4"):
            read_windows(tmp_path / "x.csv", self.WINDOW)

    def test_a_folder_is_read_as_training_reads_it(self, tmp_path: Path) -> None:
        """Windows of recordings without labels are those that training has."""
        (tmp_path / "shoal.toml").write_text(
            'names = ["clock", "b", "a"]\ntime_unit = "ms"\n[columns]\nclock = "time"\n'
        )
        for name, every in (("slow", 20), ("fast", 8), ("with a gap", 20)):
            t = np.arange(200) * every
            t[120:] += 900 * (name == "with a gap")
            rows = np.stack([t, np.cos(t / 90), np.sin(t / 70)], axis=1)
            np.savetxt(tmp_path / f"{name}.csv", rows, delimiter=",", fmt="%.6f")
        trained = load_folder(tmp_path, 4, 2, rate_hz=50.0)
        assert trained.channels == ("b", "a")
        expected = trained.unlabelled_x[:, ::-1]
        with (tmp_path / "shoal.toml").open("a") as file:
            file.write('[labels]\n"*" = "walk"\n')
        np.testing.assert_array_equal(read_windows(tmp_path, self.WINDOW), expected)
        assert len(read_windows(tmp_path / "with a gap.csv", self.WINDOW)) == 59 + 39

    def test_another_rate_is_brought_onto_the_models(self, tmp_path: Path) -> None:
        for hz in (50, 100):
            t = np.arange(4 * hz) / hz
            rows = np.stack([t, np.sin(3 * t), np.cos(2 * t)], axis=1)
            np.savetxt(tmp_path / f"{hz}.csv", rows, delimiter=",", header="time,a,b", comments="")
        slow, fast = (read_windows(tmp_path / f"{hz}.csv", self.WINDOW) for hz in (50, 100))
        assert abs(len(slow) - len(fast)) <= 1
        np.testing.assert_allclose(fast, slow[: len(fast)], atol=0.04)

    def test_persons_are_not_mixed(self, tmp_path: Path) -> None:
        rows = "".join(f"{i % 2},{i % 2},{i}\n" for i in range(16))
        (tmp_path / "x.csv").write_text(f"person,a,b\n{rows}")
        x = read_windows(tmp_path / "x.csv", self.WINDOW)
        assert [window[0].tolist() for window in x] == 3 * [[0] * 4] + 3 * [[1] * 4]

    def test_the_files_of_sensors_are_one_recording(self, tmp_path: Path) -> None:
        t = np.arange(100) / 50
        for sensor in ("Accelerometer", "Gyroscope"):
            rows = np.stack([t, t, len(sensor) * t], axis=1)
            np.savetxt(
                tmp_path / f"{sensor}.csv", rows, delimiter=",", header="time,x,y", comments=""
            )
        window = Window(("Gyroscope.y", "Accelerometer.x"), 4, 2, 50.0)
        x = read_windows(tmp_path, window)
        assert len(x) >= 48
        np.testing.assert_allclose(x[:, 0], 9 * x[:, 1], atol=1e-5)
        with pytest.raises(DataError, match=r"no column for channel 'Gyroscope\.y'"):
            read_windows(tmp_path / "Accelerometer.csv", window)

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("time,b,c\n0,1,2\n", r"x\.csv: no column for channel 'a', got time, b, c"),
            ("a,b\n1,2\n1,high\n", r"x\.csv, line 3, column b: 'high' is not a number"),
            ("a,b\n1,\n2,\n", r"x\.csv: column b, a channel of the model, has no number"),
            (
                "time,a,b\n0,1,2\n0.1,1,2\n0.2,1,2\n",
                "has 10 samples a second, and 50 are wanted.* Record at least 25",
            ),
        ],
        ids=["a channel lacks", "text", "empty", "too slow"],
    )
    def test_what_cannot_be_is_said(self, tmp_path: Path, text: str, error: str) -> None:
        (tmp_path / "x.csv").write_text(text)
        for path in (tmp_path, tmp_path / "x.csv"):
            with pytest.raises(DataError, match=error):
                read_windows(path, self.WINDOW)

    def test_a_folder_without_recordings(self, tmp_path: Path) -> None:
        np.save(tmp_path / "X.npy", np.zeros((3, 2, 4), np.float32))
        with pytest.raises(DataError, match=r"has no recording.* Name the file of windows: "):
            read_windows(tmp_path, self.WINDOW)
