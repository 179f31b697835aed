"""What `serve`, `campaign start` and `campaign set` make of the options that say whom a round
asks."""

from typing import Any

import pytest

from shoal.campaign_settings import with_asking
from wire.errors import ConfigError


@pytest.mark.parametrize(
    ("policy", "cohort", "fields"),
    [
        ("sync", 20, {"cohort": 20, "over_select": 1.0, "buffer": 0, "concurrency": 0}),
        (
            "over-select:cohort=20:over=0.5",
            None,
            {"cohort": 20, "over_select": 1.5, "buffer": 0, "concurrency": 0},
        ),
        (
            "buffered:buffer=7",
            None,
            {"cohort": 0, "over_select": 1.0, "buffer": 7, "concurrency": 0},
        ),
    ],
)
def test_a_policy_says_the_fields_of_a_campaign(
    policy: str, cohort: int | None, fields: dict[str, Any]
) -> None:
    assert with_asking(policy, cohort, None) == fields


@pytest.mark.parametrize(
    ("policy", "cohort", "over_select", "error"),
    [
        ("over-select:cohort=20", 10, None, "cohort is given twice"),
        ("buffered", 10, None, "has no rounds; say concurrency= and buffer="),
        (
            "over-select",
            None,
            1.3,
            "--over-select 1.3: --policy over-select says how many are asked",
        ),
        ("eager", None, None, "'eager' is none of sync, over-select, buffered"),
    ],
)
def test_two_options_that_say_the_same_are_refused(
    policy: str, cohort: int | None, over_select: float | None, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        with_asking(policy, cohort, over_select)
