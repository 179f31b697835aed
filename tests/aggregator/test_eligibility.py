"""Rules over the records of devices: what they mean, and that nothing but a rule is read as one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from aggregator.fleet.eligibility import DEEPEST, FIELDS, holds, read_rule
from aggregator.fleet.records import Ban, Campaign, Device, LastOffer, Member, Placed, Version
from tests.support.pages import page
from tests.support.settings import SETTINGS
from wire.errors import ConfigError
from wire.messages import CheckIn, InUse

SAID = CheckIn(
    "d",
    50,
    10,
    client="shoal 1.2.3",
    protocol="1.1",
    app="3.14.0 (271)",
    runtime="onnxruntime",
    battery_percent=60.0,
    unmetered=True,
    hardware="Pi 4",
    classes=(10, 40),
)
KNOWN = Device(
    tags=("berlin", "nights"),
    facts=SAID,
    online=True,
    campaign="run",
    in_use=InUse("d", 7, 9),
    last_offer=LastOffer(9, 3),
    settled=LastOffer(7, 2),
)
SILENT = Device()


def campaigns_with(member: Member | None = None) -> dict[str, Campaign]:
    """A campaign by the name ``run`` that has a device ``d``, if there is one."""
    version = Version(round=0, models={}, memory="", programs={}, newcomers="")
    known = Map({} if member is None else {"d": member})
    campaign = Campaign(settings=SETTINGS, next_settings=SETTINGS, version=version, members=known)
    return {"run": campaign}


ALL = campaigns_with(Member(group="1"))


@pytest.mark.parametrize(
    ("rule", "known", "silent"),
    [
        ("", True, True),
        (
            "tags has nights and battery >= 50 and not metered and version >= 1.2 and windows > 39",
            True,
            False,
        ),
        ("tags has days", False, False),
        ("tags has nights or tags has days", True, False),
        ("battery > 60", False, None),
        ("not battery > 60", True, None),
        ("not metered", True, None),
        ("known battery", True, False),
        ("not known battery or battery > 50", True, True),
        ("charging", None, None),
        ("charging or online", True, None),
        ("charging and online", None, False),
        ("charging and not online", False, None),
        ("version = 1.2.3", True, None),
        ("version > 1.2.3 or version < 1.2", False, None),
        ("version >= 1.10", False, None),
        ("version != 1.2.3.0", False, None),
        ("protocol < 1.2 and protocol >= 1.1", True, None),
        ("app < 3.15 and app >= 3.14", True, None),
        ("known app", True, False),
        ("hardware = 'Pi 4'", True, None),
        ('hardware != "Pi 4"', False, None),
        ("windows.1 >= 40 and windows.0<40", True, None),
        ("windows.7 = 0", True, None),
        ("id = d", True, True),
        ("(online or banned) and not (online and banned)", True, False),
        ("not not online", True, False),
        ("group = 1", True, None),
        ("campaign = run", True, None),
        ("release = 2", True, False),
        ("release = 0", False, True),
    ],
)
def test_a_rule_is_true_false_or_not_known(
    rule: str, known: bool | None, silent: bool | None
) -> None:
    assert (
        holds(read_rule(rule).tree, "d", KNOWN, ALL),
        holds(read_rule(rule).tree, "d", SILENT, ALL),
    ) == (
        known,
        silent,
    )
    assert (read_rule(rule).means("d", KNOWN, ALL), read_rule(rule).means("d", SILENT, ALL)) == (
        known is True,
        silent is True,
    )


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ("tag has x", "at character 1: no field 'tag': expected one of id, tags, battery"),
        ("battery", "at character 8: end of the rule: expected a comparison"),
        ("online and battery >= full", "at character 23: 'full' after battery: expected a number"),
        ("battery >= nan", "'nan' after battery: expected a number"),
        ("version >= new", "'new' after version: expected a version"),
        ("(online", "at character 8: end of the rule: expected '\\)'"),
        ("online)", "at character 7: '\\)': expected 'and', 'or' or the end"),
        (
            "online = 1",
            "at character 8: '=' after online \\(yes or no\\): expected 'online' or 'not "
            "online' alone",
        ),
        ("tags = a", "expected 'tags has WORD'"),
        ("battery has 3", "'has' after battery \\(number\\): expected a set, such as tags"),
        ("hardware < x", "expected = or !="),
        ("online and", "end of the rule: expected a field"),
        ("online ; exit()", "no|expected"),
        ("battery ! 3", "unexpected '!'"),
        ("hardware = 'Pi", 'unexpected "\'"'),
        ("not " * (DEEPEST + 2) + "online", "more than 50"),
        ("(" * 500, "more than 50"),
        ("online " * 1000, "where must have at most 2000 characters, got 7000"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_place_and_what_was_expected(
    rule: str, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        read_rule(rule)


ATOMS = {
    "online": True,
    "banned": False,
    "charging": None,
    "battery >= 60": True,
    "battery < 60": False,
    "temperature > 3": None,
}
trees = st.recursive(
    st.sampled_from(sorted(ATOMS)),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("and"), inner, inner),
        st.tuples(st.just("or"), inner, inner),
    ),
    max_leaves=12,
)


def written(tree: object) -> str:
    match tree:
        case ("not", inner):
            return f"not ({written(inner)})"
        case (word, one, other):
            return f"({written(one)}) {word} ({written(other)})"
    return str(tree)


def computed(tree: object) -> bool | None:
    """Return the value by Kleene's tables, written down independently: false < unknown < true;
    `and` is the minimum, `or` the maximum."""
    order = {False: 0, None: 1, True: 2}
    match tree:
        case ("not", inner):
            return {True: False, False: True, None: None}[computed(inner)]
        case (word, one, other):
            chosen = min if word == "and" else max
            return chosen(computed(one), computed(other), key=order.__getitem__)
    return ATOMS[str(tree)]


@given(trees)
def test_every_rule_is_what_three_valued_logic_makes_of_its_parts(tree: object) -> None:
    assert holds(read_rule(written(tree)).tree, "d", KNOWN, ALL) is computed(tree)


WORDS = [
    *FIELDS,
    "and",
    "or",
    "not",
    "has",
    "known",
    "(",
    ")",
    ">=",
    "=",
    "<",
    "50",
    "1.2",
    "nights",
    "'a b'",
    "windows.3",
    "\x00",
    "é",
    ";",
]


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)))
def test_any_text_is_a_rule_or_a_clear_error(text: str) -> None:
    try:
        rule = read_rule(text)
    except ConfigError:
        return
    for device in (KNOWN, SILENT, Device(ban=Ban(1.0, "x"))):
        assert holds(rule.tree, "d", device, ALL) in (True, False, None)


@pytest.mark.parametrize(
    ("campaigns", "group"),
    [
        ({}, None),
        (campaigns_with(), None),
        (campaigns_with(Member()), None),
        (campaigns_with(Member(group="2")), "2"),
        (campaigns_with(Member(group="2", placed=Placed("3", 0.8, 5))), "3"),
    ],
)
def test_a_devices_group_is_that_in_the_campaign_that_it_last_worked_for(
    campaigns: dict[str, Campaign], group: str | None
) -> None:
    assert FIELDS["group"].read("d", KNOWN, campaigns) == group
    assert FIELDS["group"].read("d", SILENT, campaigns) is None


def test_the_page_has_every_field() -> None:
    text = page("who-trains")
    table = text[text.index("## Rules") :]
    assert set(re.findall(r"`([a-z_]+)`", table[: table.index("\n\n`windows.")])) >= set(FIELDS)
