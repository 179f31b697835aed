"""Parts into which sets of devices cut them (SPEC.md, 'Secret sums'). Pure.

Two devices are in one part if every set has both or neither of them. Any combination of the sums
over these sets, of all rounds, is over whole parts. So no combination shows fewer devices than the
smallest part has.
"""

from collections.abc import Iterable

from wire.fields import Name


def cut(parts: Iterable[frozenset[Name]], devices: Iterable[Name]) -> frozenset[frozenset[Name]]:
    """Return the parts into which one more set cuts the devices."""
    members = frozenset(devices)
    pieces = {piece for part in parts for piece in (part & members, part - members)}
    pieces.add(members.difference(*parts))
    return frozenset(pieces - {frozenset()})
