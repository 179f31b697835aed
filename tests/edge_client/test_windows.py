"""Data folders in every form that a device may have, and those that cannot be used."""

from pathlib import Path

import numpy as np
import pytest

from edge_client.adapters.windows import load_folder
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
        assert windows.train_x[:, 0].max() < 150 <= windows.test_x[:, 0].min()
        assert set(windows.train_y.tolist()) == {0, 1}
        assert all((w < 100).all() or (w >= 100).all() for w in windows.train_x[:, 0])

    @pytest.mark.parametrize(
        ("files", "error"),
        [
            ({}, "expected train.npz"),
            ({"train.npz": "junk"}, "train.npz"),
            ({"a.csv": "x,y\n1,2"}, "no column 'label'"),
            ({"a.csv": "x,label\n1,zero"}, "line 2"),
            ({"a.csv": "x,label\n1,0\n2"}, "line 3"),
            ({"a.csv": "x,label\nnan,0"}, "not finite"),
            ({"a.csv": "x,label\n1,0", "b.csv": "z,label\n1,0"}, "channels"),
            ({"a.csv": "x,label\n1,0"}, "no recording has 128 samples"),
        ],
    )
    def test_unusable_folder_is_one_clear_error(self, tmp_path: Path, files: dict[str, str], error: str) -> None:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=error):
            load_folder(tmp_path)

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no such folder"):
            load_folder(tmp_path / "x")
