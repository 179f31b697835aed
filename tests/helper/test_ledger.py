"""No combination of the sums that a helper opens shows fewer devices than it promises."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helper.core.ledger import Ledger, SetRefused, cut

DEVICES = [f"d{number}" for number in range(9)]
SETS = st.lists(st.sets(st.sampled_from(DEVICES)), min_size=1, max_size=4)


def uploads(members: set[str], question: int) -> dict[str, bytes]:
    return {name: f"{name}/{question}".encode() for name in members}


def agreed(sets: list[set[str]], min_sum: int) -> list[set[str]]:
    """The sets that a helper opens, one question each."""
    ledger, opened = Ledger(), []
    for number, members in enumerate(sets):
        try:
            ledger = ledger.agree(f"q{number}", f"s{number}", uploads(members, number), min_sum)
        except SetRefused:
            continue
        opened.append(members)
    return opened


@given(sets=SETS, min_sum=st.integers(2, 4))
def test_no_combination_of_opened_sums_is_over_fewer_devices(
    sets: list[set[str]], min_sum: int
) -> None:
    opened = agreed(sets, min_sum)
    for factors in product(range(-2, 3), repeat=len(opened)):
        weights = [sum(f for f, s in zip(factors, opened, strict=True) if d in s) for d in DEVICES]
        shown = sum(weight != 0 for weight in weights)
        assert shown == 0 or shown >= min_sum, (opened, factors)


@given(sets=SETS)
def test_parts_are_the_devices_that_no_set_tells_apart(sets: list[set[str]]) -> None:
    parts = frozenset[frozenset[str]]()
    for members in sets:
        parts = cut(parts, members)
    by_sets: dict[tuple[bool, ...], set[str]] = {}
    for device in DEVICES:
        if any(device in members for members in sets):
            by_sets.setdefault(tuple(device in members for members in sets), set()).add(device)
    assert parts == {frozenset(part) for part in by_sets.values()}


class TestAgree:
    ALL = frozenset(DEVICES)

    def test_the_same_set_is_agreed_to_again(self) -> None:
        ledger = Ledger().agree("q", "s", uploads({*self.ALL}, 0), 4)
        assert ledger.agree("q", "s", uploads({*self.ALL}, 0), 4) is ledger

    @pytest.mark.parametrize(
        ("question", "set_digest", "members", "attempt", "reason"),
        [
            ("q", "t", {*DEVICES[:8]}, 1, "opened-before: another set"),
            ("r", "t", {*DEVICES[:3]}, 1, "too-few: 3 devices, at least 4"),
            ("r", "t", {*DEVICES}, 0, "opened-before: an upload would be opened twice"),
            ("r", "t", {*DEVICES[:8]}, 1, r"differencing: .* show 1 devices, .*\(d8\)"),
            ("r", "t", {*DEVICES, "e1"}, 1, r"differencing: .* show 1 devices, .*\(e1\)"),
        ],
    )
    def test_refusals(
        self, question: str, set_digest: str, members: set[str], attempt: int, reason: str
    ) -> None:
        ledger = Ledger().agree("q", "s", uploads({*self.ALL}, 0), 4)
        with pytest.raises(SetRefused, match=reason):
            ledger.agree(question, set_digest, uploads(members, attempt), 4)

    def test_halves_that_are_large_enough_are_opened(self) -> None:
        assert agreed([{*DEVICES}, {*DEVICES[:4]}, {*DEVICES[4:]}], 4) == [
            {*DEVICES},
            {*DEVICES[:4]},
            {*DEVICES[4:]},
        ]
