"""The sets of devices whose sums a helper has opened, and the rule that protects each device. Pure.

All sets together cut the devices into parts: two devices are in one part if every set has both or
neither of them. Any combination of the sums, of all rounds, is over whole parts. So no combination
shows fewer than `min_sum` devices if no part has fewer.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from wire.fields import Digest, Name


class SetRefused(Exception):
    """A set that a helper does not open. Its text says which rule forbids it."""


@dataclass(frozen=True)
class Ledger:
    """What a helper has agreed to open."""

    sets: Mapping[Digest, Digest] = field(default_factory=dict)
    """Digest of the one set of each question, by digest of the question."""
    uploads: Set[bytes] = frozenset()
    """Ids of the uploads in opened sets."""
    parts: frozenset[frozenset[Name]] = frozenset()
    """Parts into which the opened sets cut the devices."""

    def agree(
        self,
        question: Digest,
        set_digest: Digest,
        uploads: Mapping[Name, bytes],
        min_sum: int,
    ) -> "Ledger":
        """Return the ledger that has agreed to a set; the same one if it has agreed before.

        Args:
            question: digest of the question.
            set_digest: digest of the set, that is, of the question and `uploads`.
            uploads: id of each device's upload, by device.
            min_sum: smallest number of devices that a sum may show.

        Raises:
            SetRefused: the set, or the set with earlier ones, would show fewer devices, or an
                upload or a question would be opened twice.
        """
        if question in self.sets:
            if self.sets[question] != set_digest:
                raise SetRefused("opened-before: another set of this question was opened")
            return self
        if len(uploads) < min_sum:
            raise SetRefused(f"too-few: {len(uploads)} devices, at least {min_sum} are needed")
        fresh = set(uploads.values())
        if len(fresh) < len(uploads) or fresh & self.uploads:
            raise SetRefused("opened-before: an upload would be opened twice")
        parts = cut(self.parts, uploads.keys())
        if len(small := min(parts, key=len)) < min_sum:
            raise SetRefused(
                f"differencing: with earlier sums it would show {len(small)} devices, at least "
                f"{min_sum} are needed ({', '.join(sorted(small))})"
            )
        return replace(
            self,
            sets={**self.sets, question: set_digest},
            uploads=self.uploads | fresh,
            parts=parts,
        )


def cut(parts: Iterable[frozenset[Name]], devices: Iterable[Name]) -> frozenset[frozenset[Name]]:
    """Return the parts into which one more set cuts the devices."""
    members = frozenset(devices)
    pieces = {piece for part in parts for piece in (part & members, part - members)}
    pieces.add(members.difference(*parts))
    return frozenset(pieces - {frozenset()})
