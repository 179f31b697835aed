"""The model in use and the one before, each a folder of its own, so that any program may read them.

``current`` and ``before`` are symbolic links to folders in ``models``. A folder holds
``model.json`` and, where the bundle has what it is made from, ``model.onnx``; it is written before
a link names it and never changed afterwards. Who resolves the link once reads both of one model.
"""

import shutil
from pathlib import Path

import msgspec

from edge_client.core.ports import Current
from host.files import make_folder, sync_folder, write_atomically
from wire.codec import digest

CURRENT, BEFORE, MODELS = "current", "before", "models"
MODEL_JSON, MODEL_ONNX = "model.json", "model.onnx"


class ModelFolders:
    """The links and folders in a state folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, current: Current, onnx: bytes, keep: bool) -> None:
        """Write a model's folder and let ``current`` name it; what it named is ``before`` from then
        on, if that is to be kept.

        Raises:
            OSError: it cannot be written; the links name what they named.
        """
        text = msgspec.json.format(msgspec.json.encode(current), indent=1)
        place = self._folder / MODELS / f"{current.release}-{digest(text)[:16]}"
        try:
            make_folder(place)
            if onnx:
                write_atomically(place / MODEL_ONNX, onnx)
            write_atomically(place / MODEL_JSON, text)
            sync_folder(place.parent)
            used = self._target(CURRENT)
            if keep and used is not None and used != place:
                self._link(BEFORE, used)
            self._link(CURRENT, place)
        finally:
            self._forget()

    def _target(self, name: str) -> Path | None:
        try:
            return self._folder / (self._folder / name).readlink()
        except OSError:
            return None

    def _link(self, name: str, place: Path) -> None:
        temporary = self._folder / f"{name}.new"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(place.relative_to(self._folder))
        temporary.replace(self._folder / name)
        sync_folder(self._folder)

    def _forget(self) -> None:
        """Remove the folders that no link names."""
        linked = {self._target(CURRENT), self._target(BEFORE)}
        for place in [path for path in (self._folder / MODELS).glob("*") if path not in linked]:
            shutil.rmtree(place, ignore_errors=True)
