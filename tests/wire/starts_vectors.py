"""The vectors of the starts of a client, ``starts.json``.

``begin``: what a client makes of the last start that it has stored (``damaged`` if the file is),
and of the random number `drawn`. It `ends` if the last start was refused. Without `stored` its disk
is full. ``refuse``: a refusal that comes to a client with such a start, and whether it `ends`.
"""

import json
from typing import Any

from tests.wire.signed_vectors import VECTORS

FILE = VECTORS / "starts.json"

Last = tuple[int, int, bool] | str | None

BEGIN: list[tuple[str, Last, bool, tuple[int, int] | None]] = [
    ("the first start", None, True, (1, 7)),
    ("the next start", (1, 5, False), True, (2, 7)),
    ("a start that was refused", (4, 5, True), True, None),
    ("a full disk at the first start", None, False, (0, 0)),
    ("a full disk later: the last start goes on", (4, 5, False), False, (4, 5)),
    ("a damaged file: a start that is not counted", "damaged", True, (0, 7)),
    ("a damaged file and a full disk", "damaged", False, (0, 0)),
    ("the start after one that is not counted", (0, 5, False), True, (1, 7)),
    ("a full disk after a start that is not counted", (0, 5, False), False, (0, 0)),
    ("a large number", (2**53 - 1, 5, False), True, (2**53, 7)),
]
REFUSE: list[tuple[str, int, str, int, bool]] = [
    ("this start", 7, "second-device", 7, True),
    ("the other device with this identity", 7, "second-device", 8, False),
    ("another reason", 7, "malformed", 7, False),
    ("a start without a random number", 0, "second-device", 0, False),
]
DRAWN = 7


def text() -> str:
    """The file, a case a line."""
    begin = [
        {
            "name": name,
            "last": dict(zip(("number", "instance", "is_refused"), last, strict=True))
            if isinstance(last, tuple)
            else last,
            "drawn": DRAWN,
            "stored": stored,
            "ends": start is None,
            "number": start[0] if start else 0,
            "instance": start[1] if start else 0,
        }
        for name, last, stored, start in BEGIN
    ]
    refuse = [
        {"name": name, "instance": own, "reason": reason, "refused": refused, "ends": ends}
        for name, own, reason, refused, ends in REFUSE
    ]
    parts: dict[str, list[dict[str, Any]]] = {"begin": begin, "refuse": refuse}
    lists = (
        f'"{key}": [\n  ' + ",\n  ".join(json.dumps(case) for case in cases) + "\n]"
        for key, cases in parts.items()
    )
    return "{" + ",\n".join(lists) + "}\n"
