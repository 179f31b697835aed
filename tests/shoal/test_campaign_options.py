"""Options of `serve`, `campaign start` and `campaign set` about a round's cohort."""

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
        ("buffered", 10, None, "cohort must be 0 with policy 'buffered', got 10"),
        (
            "over-select",
            None,
            1.3,
            "over_select must be left out with a policy, got 1.3 with 'over-select'",
        ),
        ("eager", None, None, r"No policy 'eager'\. Known policies: sync, over-select, buffered\."),
    ],
)
def test_two_options_that_say_the_same_are_refused(
    policy: str, cohort: int | None, over_select: float | None, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        with_asking(policy, cohort, over_select)
