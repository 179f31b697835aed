"""A plan for the tests of the client."""

from typing import Any

import msgspec

from wire import messages as m


def plan(number: int = 1, run_id: str = "r", **changes: Any) -> m.Plan:
    default = m.Plan(
        run_id,
        1,
        number,
        0,
        "d0",
        bundle="0" * 64,
        model="1" * 64,
        verbs=(m.Train(8),),
        seed=1,
        deadline_at_s=9e9,
    )
    return msgspec.structs.replace(default, **changes)
