"""What files hold, as a digest: a result of other data, or of a model that was edited, is another
result."""

import hashlib
from functools import lru_cache
from pathlib import Path

from algorithms.models.adoption.from_file import is_file
from simulation.datasets.catalog import NAMES


def content_of(data: str, model: str = "") -> str:
    """A digest of the files of data that are given by a path, and of the file of a model of one's
    own; empty where there are none. Data and models by name are what the name says."""
    folder, code = Path(data), Path(model.rpartition(":")[0])
    paths = (
        []
        if data in NAMES or not folder.exists()
        else [folder]
        if folder.is_file()
        else sorted(folder.rglob("*"))
    )
    files = [(path, str(path.relative_to(folder))) for path in paths if path.is_file()]
    if is_file(model) and code.is_file():
        files.append((code, "model"))
    told = [
        (name, _digest(path, path.stat().st_size, path.stat().st_mtime_ns)) for path, name in files
    ]
    return hashlib.sha256(repr(told).encode()).hexdigest() if told else ""


@lru_cache(maxsize=100_000)
def _digest(path: Path, size: int, changed_ns: int) -> str:
    """Of a file's content; read again when its size or its time is another one."""
    del size, changed_ns
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
