"""Reader of class files (JVM specification, chapter 4): constants, members and annotations."""

import struct
from dataclasses import dataclass

UTF8, INTEGER = 1, 3
SIZES = {
    INTEGER: 5,
    4: 5,
    5: 9,
    6: 9,
    7: 3,
    8: 3,
    9: 5,
    10: 5,
    11: 5,
    12: 5,
    15: 4,
    16: 3,
    17: 5,
    18: 5,
    19: 3,
    20: 3,
}
"""Number of bytes of a constant by its tag. A text (`UTF8`) stores its own length."""


@dataclass(frozen=True)
class ClassMember:
    """A field or method. `attributes` are the contents of its attributes by name."""

    access: int
    name: str
    descriptor: str
    attributes: dict[bytes, bytes]


class ClassFile:
    """The parts of a class file.

    `constants` are by number, from 1. `attributes` are those of the class itself.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.constants: dict[int, bytes] = {}
        (count,) = struct.unpack_from(">H", content, 8)
        offset, index = 10, 1
        while index < count:
            tag = content[offset]
            size = (
                3 + struct.unpack_from(">H", content, offset + 1)[0] if tag == UTF8 else SIZES[tag]
            )
            self.constants[index] = content[offset : offset + size]
            index += 2 if tag in (5, 6) else 1  # a long or double occupies two numbers
            offset += size
        self.access, this_class, base, interfaces = struct.unpack_from(">HHHH", content, offset)
        self.name, self.base = self.class_name(this_class), self.class_name(base)
        self.interfaces = [
            self.class_name(number)
            for number in struct.unpack_from(f">{interfaces}H", content, offset + 8)
        ]
        offset, self.fields = self._members(offset + 8 + 2 * interfaces)
        offset, self.methods = self._members(offset)
        _, self.attributes = self._attributes(offset)

    def text(self, index: int) -> bytes:
        """Return the text of a constant."""
        return self.constants[index][3:]

    def class_name(self, index: int) -> str:
        """Return the name, with slashes, of a constant of a class."""
        return self.text(struct.unpack_from(">H", self.constants[index], 1)[0]).decode()

    def annotated(self, attributes: dict[bytes, bytes], annotation: str) -> bool:
        """Return True if these attributes have the annotation, which must be without values."""
        attribute = attributes.get(b"RuntimeInvisibleAnnotations", b"\0\0")
        (count,) = struct.unpack_from(">H", attribute)
        offset, names = 2, []
        for _ in range(count):
            name, values = struct.unpack_from(">HH", attribute, offset)
            names.append(self.text(name).decode())
            # annotations after one with values are ignored: Kotlin writes opt-in markers without
            # values
            if values:
                break
            offset += 4
        return f"L{annotation};" in names

    def _members(self, at: int) -> tuple[int, list[ClassMember]]:
        (count,) = struct.unpack_from(">H", self.content, at)
        at, members = at + 2, []
        for _ in range(count):
            access, name, descriptor = struct.unpack_from(">HHH", self.content, at)
            at, attributes = self._attributes(at + 6)
            members.append(
                ClassMember(
                    access, self.text(name).decode(), self.text(descriptor).decode(), attributes
                )
            )
        return at, members

    def _attributes(self, at: int) -> tuple[int, dict[bytes, bytes]]:
        (count,) = struct.unpack_from(">H", self.content, at)
        at, attributes = at + 2, {}
        for _ in range(count):
            name, size = struct.unpack_from(">HI", self.content, at)
            attributes[self.text(name)] = self.content[at + 6 : at + 6 + size]
            at += 6 + size
        return at, attributes
