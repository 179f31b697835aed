"""What devices keep, for the tests of the service."""

from typing import Any

from algorithms.personalisation.kept import Kept
from wire import messages as m

NAMES = ("tuned, neighbours 0.5", "general, neighbours 0")
KEPT = Kept(NAMES[0], 12, 0.25, {NAMES[1]: 0.5})
LAYOUT = (
    ("response/choose.kept", "float32", (2,)),
    ("response/choose.loss", "float32", (2,)),
    ("response/choose.windows", "float32", ()),
)
CLOSING = (
    m.Evaluate("windows", "memorise", report=False),
    m.Apply("choose"),
    m.Evaluate("test", "assess"),
)
CHOICE: dict[str, Any] = {
    "candidates": NAMES,
    "responses": {"choose": LAYOUT, "memorise": (("response/x", "float32", ()),)},
}
