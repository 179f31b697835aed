"""Vectors of personal models, ``personal-models.json``.

Each has the personal models that a device stored one after the other, and an offered model.

`held` is what of that it still holds, `used` what is used with the model, by their tensors'
digests; `alone` is whether the device says that the model is used without what was kept. Runs are
letters; bundles, models and tensors are named by one hexadecimal digit.
"""

import json

from tests.wire.signed_vectors import VECTORS

FILE = VECTORS / "personal-models.json"

CASES: list[tuple[str, str, str, str, str, bool]] = [
    ("nothing was kept", "", "r0a", "", "", False),
    ("of this model", "r0a1", "r0a", "1", "1", False),
    ("of another model of the run", "r0a1", "r0b", "1", "", True),
    ("of this model of another bundle", "r0a1", "r2a", "1", "", True),
    ("of another run", "s0a1", "r0b", "1", "", True),
    ("of this model, in another run", "s0a1", "r0a", "1", "1", False),
    ("of two models, the first one comes back", "r0a1 r0b2", "r0a", "1 2", "1", False),
    ("of one model twice: the last counts", "r0a1 r0a2", "r0a", "2", "2", False),
    ("of one model again, after another one", "r0a1 r0b2 r0a3", "r0a", "2 3", "3", False),
    ("of four models: the first is forgotten", "r0a1 r0b2 r0c3 r0d4", "r0a", "2 3 4", "", True),
    ("of four models: the second is there", "r0a1 r0b2 r0c3 r0d4", "r0b", "2 3 4", "2", False),
    ("one that was kept again stays", "r0a1 r0b2 r0c3 r0a5 r0d4", "r0a", "3 5 4", "5", False),
]
"""A name; what was kept, each as run, bundle, model and tensors; the offered run, bundle and model;
what is held, what is used, `alone`."""


def text() -> str:
    """The file, a case a line."""
    rows = []
    for name, made, offered, held, used, alone in CASES:
        kept = [_entry(one[:3]) | {"tensors": one[3] * 64} for one in made.split()]
        expected = {
            "held": [digit * 64 for digit in held.split()],
            "used": used * 64,
            "alone": alone,
        }
        rows.append({"name": name, "personal_models": kept, "offered": _entry(offered)} | expected)
    return "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"


def _entry(word: str) -> dict[str, str]:
    return {"run_id": word[0], "bundle": word[1] * 64, "model": word[2] * 64}
