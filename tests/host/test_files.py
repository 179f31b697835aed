"""Errors of files say the cause and the remedy."""

from pathlib import Path

import pytest

from host.files import file_error, open_regular


def test_a_file_error_names_subject_cause_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "none")
    for path, text in (
        (tmp_path / "none", "No such file or directory; check the path"),
        (tmp_path, "it is not a regular file; choose the path of a regular file"),
        (tmp_path / "link", "Too many levels of symbolic links; choose the file itself"),
    ):
        with pytest.raises(OSError, match=text.partition(";")[0]) as caught:
            open_regular(path)
        assert file_error(f"--x {path}", caught.value).startswith(f"--x {path}: {text}")


def test_an_unusual_file_error_has_a_remedy_too() -> None:
    text = "x: Not a gzipped file; check its disk, or choose another path"
    assert file_error("x", OSError("Not a gzipped file")) == text
