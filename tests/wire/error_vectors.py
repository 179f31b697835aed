"""The vectors of errors, ``errors.json``: reports with what of them may leave the device, the
details of declines under a policy, and plans that a client cannot read."""

import json

import msgspec
from msgspec.structs import replace

from tests.wire.signed_vectors import RUN, VECTORS, A, B
from wire import messages as m
from wire.codec import encode

FILE = VECTORS / "errors.json"
FULL = m.ErrorReport(
    "p01-left",
    1_795_305_600.5,
    "Update not stored",
    "OSError",
    "[Errno 28] No space left on device: '/home/anna/shoal/update.safetensors'",
    ("edge_client/agent/loop.py:402 _carry_out", "edge_client/storage/files.py:88 write"),
    "shoal 0.1.0",
    "",
    123_456_789,
    536_870_912,
)
FRAME = "edge_client/work/executor.py:%d "
REPORTS: list[tuple[str, m.ErrorReport, str, m.ErrorReport]] = [
    (
        "the home folder stays on the device",
        FULL,
        "/home/anna",
        replace(
            FULL,
            message="[Errno 28] No space left on device: '~/shoal/update.safetensors'",
        ),
    ),
    ("no home folder", FULL, "", FULL),
    ("a home folder that is the root", FULL, "/", FULL),
    (
        "a long message is cut to 500 bytes, and no character in two",
        replace(FULL, message="a" + "\u00e9" * 400),
        "",
        replace(FULL, message="a" + "\u00e9" * 249),
    ),
    (
        "a long type and a long line are cut",
        replace(FULL, error="E" * 300, frames=("f" * 300,)),
        "",
        replace(FULL, error="E" * 100, frames=("f" * 200,)),
    ),
    (
        "the innermost 32 lines are reported",
        replace(FULL, frames=tuple(FRAME % i + "f" for i in range(40))),
        "",
        replace(FULL, frames=tuple(FRAME % i + "f" for i in range(8, 40))),
    ),
    (
        "the outermost lines are left out until the report has 4 KiB",
        replace(FULL, frames=tuple(f"{i:02d}" + "f" * 198 for i in range(32))),
        "",
        replace(FULL, frames=tuple(f"{i:02d}" + "f" * 198 for i in range(14, 32))),
    ),
]
"""A name, a report, the home folder, and the report that leaves the device."""
DETAILS: list[tuple[bool, m.DeclineReason, str, str]] = [
    (True, "failed", "ValueError: 98.6", "ValueError: 98.6"),
    (False, "failed", "ValueError: 98.6", ""),
    (False, "data", "windows of 3 channels", ""),
    (False, "bundle", "bundle watch cannot be loaded: ...", ""),
    (False, "policy", "graphs: survey is not permitted", "graphs: survey is not permitted"),
    (False, "expired", "its deadline was over 3 s ago", "its deadline was over 3 s ago"),
]
"""`report_errors` of a policy, the reason and detail of a decline, and the detail that is sent."""
PLAN = m.Plan(
    RUN, 1_795_305_600, 3, 7, "p01-left", A, B, (m.Train(32, 1),), 3_000_012, 1_795_306_200.0
)


def plans() -> list[tuple[str, str, bool]]:
    """Return a name, a plan's text, and True if a client declines it with ``outdated``.

    A client ignores the others.
    """
    text = encode(PLAN).decode()
    return [
        ("a verb that is not known", text.replace('"train"', '"distil"'), True),
        ("an encoding that is not known", text.replace('"float32"', '"one-bit"'), True),
        ("a field with another kind of value", text.replace('"graph":"step"', '"graph":1'), True),
        ("no bundle", text.replace(f'"bundle":"{A}",', ""), True),
        ("no round", text.replace('"round":3,', ""), False),
        ("another message", text.replace('"type":"plan"', '"type":"order"'), False),
        ("a plan for another device", text.replace("p01-left", "p02").replace("train", "x"), False),
        ("no JSON", text[:-1], False),
    ]


def text() -> str:
    """The file, a case a line."""
    parts = {
        "reports": [
            {
                "name": name,
                "report": msgspec.to_builtins(report),
                "home": home,
                "expected": msgspec.to_builtins(expected),
            }
            for name, report, home, expected in REPORTS
        ],
        "details": [
            {"report_errors": permits, "reason": reason, "detail": detail, "expected": expected}
            for permits, reason, detail, expected in DETAILS
        ],
        "plans": [{"name": name, "plan": plan, "outdated": is_so} for name, plan, is_so in plans()],
    }
    blocks = (
        f' "{key}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]"
        for key, rows in parts.items()
    )
    return "{\n" + ",\n".join(blocks) + "\n}\n"
