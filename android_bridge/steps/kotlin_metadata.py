"""Puts the annotation `kotlin.Metadata` back into shrunk classes.

The compiler reads from it what a class file cannot say (default values, names of parameters, properties). R8 before version 8.9 does not
know the format of Kotlin 2.4 and drops it. A class that was kept by name with its public members still fits what was said of it.
"""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

METADATA, ATTRIBUTE = b"Lkotlin/Metadata;", b"RuntimeVisibleAnnotations"
UTF8, INTEGER = 1, 3
SIZES = {INTEGER: 5, 4: 5, 5: 9, 6: 9, 7: 3, 8: 3, 9: 5, 10: 5, 11: 5, 12: 5, 15: 4, 16: 3, 17: 5, 18: 5, 19: 3, 20: 3}


def restore(original: Path, shrunk: Path) -> None:
    """Write `shrunk` again, every class that has its name in `original` too with its metadata."""
    with zipfile.ZipFile(original) as before:
        known = {name: before.read(name) for name in before.namelist() if name.endswith(".class")}
    with zipfile.ZipFile(shrunk) as jar:
        entries = {name: jar.read(name) for name in jar.namelist()}
    with zipfile.ZipFile(shrunk, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as jar:
        for name, content in sorted(entries.items()):
            jar.writestr(
                zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), _with_metadata(known[name], content) if name in known else content, 8
            )


class _ClassFile:
    """The parts of a class file (JVM specification, chapter 4) between which an annotation goes."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.constants: dict[int, bytes] = {}
        (self.count,) = struct.unpack_from(">H", content, 8)
        at, index = 10, 1
        while index < self.count:
            tag = content[at]
            size = 3 + struct.unpack_from(">H", content, at + 1)[0] if tag == UTF8 else SIZES[tag]
            self.constants[index] = content[at : at + size]
            index += 2 if tag in (5, 6) else 1  # long and double take two numbers
            at += size
        self.constants_end = at
        at += 8 + 2 * struct.unpack_from(">H", content, at + 6)[0]
        for _ in range(2):  # fields, methods
            (members,) = struct.unpack_from(">H", content, at)
            at += 2
            for _ in range(members):
                at = self._skip_attributes(at + 6)
        self.attributes_at = at

    def _skip_attributes(self, at: int) -> int:
        (count,) = struct.unpack_from(">H", self.content, at)
        at += 2
        for _ in range(count):
            at += 6 + struct.unpack_from(">I", self.content, at + 2)[0]
        return at

    def text(self, index: int) -> bytes:
        """A constant's text."""
        return self.constants[index][3:]

    def attribute(self, name: bytes) -> bytes | None:
        """The content of the class's own attribute of this name."""
        (count,) = struct.unpack_from(">H", self.content, self.attributes_at)
        at = self.attributes_at + 2
        for _ in range(count):
            index, size = struct.unpack_from(">HI", self.content, at)
            if self.text(index) == name:
                return self.content[at + 6 : at + 6 + size]
            at += 6 + size
        return None


def _with_metadata(original: bytes, shrunk: bytes) -> bytes:
    source, target = _ClassFile(original), _ClassFile(shrunk)
    annotations = source.attribute(ATTRIBUTE)
    if annotations is None or target.attribute(ATTRIBUTE) is not None:
        return shrunk
    added: list[bytes] = []

    def moved(constant: bytes) -> bytes:
        if constant not in added:
            added.append(constant)
        return struct.pack(">H", target.count + added.index(constant))

    at, encoded = 2, b""
    for _ in range(struct.unpack_from(">H", annotations)[0]):
        end, encoded = _annotation(source, annotations, at, moved)
        if source.text(struct.unpack_from(">H", annotations, at)[0]) == METADATA:
            break
        at, added = end, []
    else:
        return shrunk
    name = moved(struct.pack(">BH", UTF8, len(ATTRIBUTE)) + ATTRIBUTE)
    body = struct.pack(">H", 1) + encoded
    head = shrunk[:8] + struct.pack(">H", target.count + len(added)) + shrunk[10 : target.constants_end] + b"".join(added)
    (count,) = struct.unpack_from(">H", shrunk, target.attributes_at)
    tail = struct.pack(">H", count + 1) + name + struct.pack(">I", len(body)) + body + shrunk[target.attributes_at + 2 :]
    return head + shrunk[target.constants_end : target.attributes_at] + tail


def _annotation(source: _ClassFile, content: bytes, at: int, moved: Callable[[bytes], bytes]) -> tuple[int, bytes]:
    """Where the annotation at `at` ends, and the same with its constants moved."""
    type_index, pairs = struct.unpack_from(">HH", content, at)
    parts = [moved(source.constants[type_index]), struct.pack(">H", pairs)]
    at += 4
    for _ in range(pairs):
        parts.append(moved(source.constants[struct.unpack_from(">H", content, at)[0]]))
        at, value = _value(source, content, at + 2, moved)
        parts.append(value)
    return at, b"".join(parts)


def _value(source: _ClassFile, content: bytes, at: int, moved: Callable[[bytes], bytes]) -> tuple[int, bytes]:
    tag = content[at : at + 1]
    if tag == b"[":
        (count,) = struct.unpack_from(">H", content, at + 1)
        parts = [content[at : at + 3]]
        at += 3
        for _ in range(count):
            at, value = _value(source, content, at, moved)
            parts.append(value)
        return at, b"".join(parts)
    if tag not in b"Is":
        raise ValueError(f"an annotation's value has the tag {tag!r}: kotlin.Metadata has numbers, texts and arrays of them")
    return at + 3, tag + moved(source.constants[struct.unpack_from(">H", content, at + 1)[0]])
