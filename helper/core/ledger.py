"""The sets of devices whose sums a helper has opened, and the rule that protects each device. Pure.

No set is opened if any part into which all sets cut the devices has fewer than `min_sum` of them
(`wire.secret.parts`).
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from wire.fields import Digest, Name
from wire.secret.parts import cut


class SetRefused(Exception):
    """A set that a helper does not open. Its text begins with the reason."""


class UnusableShare(SetRefused):
    """A set with a share that its device should not have sent."""


@dataclass(frozen=True)
class Ledger:
    """Sets that a helper has agreed to open."""

    sets: Mapping[Digest, Digest] = field(default_factory=dict)
    """Digest of the one set of each question, by digest of the question."""
    parts: frozenset[frozenset[Name]] = frozenset()
    """Parts into which these sets cut the devices."""
    min_sum: int = 0
    """Largest `min_sum` of their questions: no later sum may show fewer devices."""

    def check(self, question: Digest, set_name: Digest, devices: Set[Name], min_sum: int) -> bool:
        """Return True if the helper has agreed to a set, and False if it may.

        Args:
            question: digest of the question.
            set_name: digest of the set.
            devices: devices of the set.
            min_sum: smallest number of devices that a sum may show; if an earlier question had a
                larger one, that counts.

        Raises:
            SetRefused: another set of the question was opened; or the set alone, or with earlier
                ones, would show fewer devices.
        """
        if question in self.sets:
            if self.sets[question] != set_name:
                raise SetRefused("opened-before: another set of this question was opened")
            return True
        min_sum = max(min_sum, self.min_sum)
        if len(devices) < min_sum:
            raise SetRefused(f"too-few: {len(devices)} devices, at least {min_sum} are needed")
        if len(small := min(cut(self.parts, devices), key=len)) < min_sum:
            raise SetRefused(
                f"differencing: with earlier sums it would show {len(small)} devices, at least "
                f"{min_sum} are needed ({', '.join(sorted(small))})"
            )
        return False

    def after(
        self, question: Digest, set_name: Digest, devices: Iterable[Name], min_sum: int = 0
    ) -> "Ledger":
        """Return the ledger that has also agreed to this set of a question with this `min_sum`."""
        sets = {**self.sets, question: set_name}
        return Ledger(sets, cut(self.parts, devices), max(self.min_sum, min_sum))
