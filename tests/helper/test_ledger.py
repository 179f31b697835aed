"""No combination of the sums that a helper opens shows fewer devices than it promises."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helper.core.ledger import Ledger, SetRefused
from wire.secret.parts import cut

DEVICES = [f"d{number}" for number in range(9)]
SETS = st.lists(st.sets(st.sampled_from(DEVICES)), min_size=1, max_size=4)


def agreed(sets: list[set[str]], min_sum: int) -> list[set[str]]:
    """The sets that a helper opens, one question each."""
    ledger, opened = Ledger(), []
    for number, members in enumerate(sets):
        try:
            ledger.check(f"q{number}", f"s{number}", members, min_sum)
        except SetRefused:
            continue
        ledger = ledger.after(f"q{number}", f"s{number}", members)
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


class TestCheck:
    LEDGER = Ledger().after("q", "s", DEVICES)

    def test_the_same_set_is_agreed_to_again(self) -> None:
        assert self.LEDGER.check("q", "s", {*DEVICES}, 4)
        assert not self.LEDGER.check("r", "s", {*DEVICES}, 4)

    @pytest.mark.parametrize(
        ("question", "members", "reason"),
        [
            ("q", {*DEVICES[:8]}, "opened-before: another set"),
            ("r", {*DEVICES[:3]}, "too-few: 3 devices, at least 4"),
            ("r", {*DEVICES[:8]}, r"differencing: .* show 1 devices, .*\(d8\)"),
            ("r", {*DEVICES, "e1"}, r"differencing: .* show 1 devices, .*\(e1\)"),
        ],
    )
    def test_refusals(self, question: str, members: set[str], reason: str) -> None:
        with pytest.raises(SetRefused, match=reason):
            self.LEDGER.check(question, "t", members, 4)

    def test_halves_that_are_large_enough_are_opened(self) -> None:
        assert agreed([{*DEVICES}, {*DEVICES[:4]}, {*DEVICES[4:]}], 4) == [
            {*DEVICES},
            {*DEVICES[:4]},
            {*DEVICES[4:]},
        ]
