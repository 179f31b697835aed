"""Folders of devices with recordings."""

from pathlib import Path


def recording(folder: Path, classes: str = "rest\nwalk\n", columns: str = "t,ax,ay,label") -> None:
    """A folder with one recording of 600 samples."""
    folder.mkdir()
    (folder / "classes.txt").write_text(classes)
    names = columns.split(",")[:-1]
    rows = [
        ",".join([*(str(i if name == "t" else i % 7) for name in names), "walk"])
        for i in range(600)
    ]
    (folder / "one.csv").write_text("\n".join([columns, *rows]))
