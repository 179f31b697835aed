"""Files of a folder that are no recordings: how they are named, and what to do with them."""

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path

from edge_client.data.tables.text_form import stem_of

_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar")
MOST_FILES = 1000
_TABLES = (".csv", ".tsv", ".dat", ".parquet", ".gz")
_READERS = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "read_excel"),
    **dict.fromkeys((".json", ".jsonl"), "read_json"),
    **{".feather": "read_feather", ".sav": "read_spss", ".dta": "read_stata", ".xml": "read_xml"},
    **dict.fromkeys((".mat", ".h5", ".hdf5", ".pkl", ".pickle", ".bin", ".cwa", ".gt3x"), ""),
}
"""Functions of pandas that read files of other kinds, "" if there is none."""
_NO_LOSS = re.compile(
    r"^\.|readme|licen[sc]e|^(study)?metadata\.|^classes\.txt$|\.(toml|np[yz]|md|pdf)$",
    re.IGNORECASE,
)
"""Names of files that hold no measurements, or are read in another way."""


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and in the folders in it, but for hidden ones and ``meta``."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and path.name.lower() != "meta":
            yield from files_in(path)


def others_of(paths: Iterable[Path], tables: Collection[Path]) -> tuple[str, ...]:
    """Return the names of the files that are no tables and may have measurements.

    A file of JSON with the name of a table describes it.
    """
    described = {table.with_name(f"{stem_of(table)}.json") for table in tables}
    names = {path.name for path in {*paths} - {*tables} - described if path.is_file()}
    return tuple(sorted(name for name in names if not _NO_LOSS.search(name)))


def unread(paths: Iterable[Path]) -> str:
    """Return the sentence of an error about files of a kind that is not read, "" if there are none.

    Folders stand for the files in them.
    """
    files = (f for path in paths for f in ([path] if path.is_file() else sorted(path.rglob("*"))))
    kinds, some = (*_READERS, *_ARCHIVES), [*islice(files, MOST_FILES)]
    path = next((f for f in some if f.suffix.lower() in kinds), None)
    if path is None:
        names = others_of(some, [f for f in some if f.name.lower().endswith(_TABLES)])
        of_text = (
            " is no table: the first line must have several cells, and the second one a number."
            if names and names[0].lower().endswith((".txt", ".log"))
            else " is of a kind that is not read. If it is a text with a table, name it *.csv."
        )
        return f" {names[0]}{of_text}" if names else ""
    if path.suffix.lower() in _ARCHIVES:
        return f" {path.name} is an archive: unpack it in its folder."
    reader = _READERS[path.suffix.lower()]
    way = f"pandas.{reader}({path.name!r}).to_csv({path.stem + '.csv'!r}, index=False)"
    return (
        f" {path.name} is of a kind that is not read: recordings are *.csv, *.tsv, *.dat, *.txt or "
        f"*.parquet, and arrays *.npz. To convert it in Python: {way}"
        if reader
        else f" {path.name} is of a kind that is not read. Load its arrays in Python, such as with "
        "scipy.io.loadmat, and give them to shoal.load(x, y, owner)."
    )
