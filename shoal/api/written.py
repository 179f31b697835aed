"""What was written of a run's models."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Written:
    """The files of one model, `NAME.safetensors`, `NAME.pt` and `NAME.onnx`, as ``models.json``
    lists them."""

    name: str
    files: tuple[str, ...]
    group: int | None
    device: str
    keeps: str
    """What a device keeps, as it told; empty for a group, and where devices do not choose."""
    left_out: str
    """Why there are not all three files; empty where there are."""


def why_left_out(written: Iterable[Written]) -> str:
    """Why some models do not have all three files: the first reason, and of how many."""
    lacking = [one for one in written if one.left_out]
    return (
        (
            f"{len(lacking)} models without some of their files, the first {lacking[0].name}: "
            f"{lacking[0].left_out}"
        )
        if lacking
        else ""
    )
