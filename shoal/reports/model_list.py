"""``models.json``: the list of the files of a run's models in a folder."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

INDEX = "models.json"


@dataclass(frozen=True)
class Written:
    """The files of one model, an entry of ``models.json``.

    They are called `NAME.safetensors`, `NAME.pt` and `NAME.onnx`.
    """

    name: str
    files: tuple[str, ...]
    group: int | None
    device: str
    keeps: str
    """Candidate that a device chose; empty for a group, and if devices do not choose."""
    left_out: str
    """Reason why files are missing; empty if all three exist."""


def why_left_out(written: Iterable[Written]) -> str:
    """Return the number of models without files, with the first reason; empty if none."""
    lacking = [one for one in written if one.left_out]
    return (
        (
            f"{len(lacking)} models without some of their files, the first {lacking[0].name}: "
            f"{lacking[0].left_out}"
        )
        if lacking
        else ""
    )


def remove_models(folder: Path, but: Collection[str] = ()) -> None:
    """Remove the models that the list of a folder names, but for these files, and the list."""
    try:
        entries = json.loads((folder / INDEX).read_text())
        listed = {str(file) for entry in entries for file in entry["files"]}
    except (OSError, ValueError, KeyError, TypeError):  # there is no list
        return
    for name in (*(listed - {*but}), INDEX):
        if name == Path(name).name:
            (folder / name).unlink(missing_ok=True)
