"""What the doctor says of one thing that it looked at."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "mended", "wrong"]
"""`note`: nothing is wrong, but it should be known. `wrong`: it is not mended."""

RESTORE = "restore the folder from a backup, or begin another run with `shoal serve --run NAME`"


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, and what there is to say of it."""

    verdict: Verdict
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:<6}  {self.where}: {self.text}"
