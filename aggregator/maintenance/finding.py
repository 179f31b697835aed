"""Findings of `shoal doctor`."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "mended", "wrong"]
"""`note`: nothing is wrong, but the operator should know it. `wrong`: not mended."""

RESTORE = "restore the folder from a backup, or begin another run with `shoal serve --run NAME`"


@dataclass(frozen=True)
class Finding:
    """One line of the report: an object that was examined, and the result."""

    verdict: Verdict
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:<6}  {self.where}: {self.text}"
