"""Puts the annotation `kotlin.Metadata` back into classes that R8 has shrunk."""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from steps.class_file import UTF8, ClassFile

METADATA, ATTRIBUTE = b"Lkotlin/Metadata;", b"RuntimeVisibleAnnotations"
ANNOTATION = 0x2000


def restore(original: Path, shrunk: Path) -> None:
    """Rewrite the jar `shrunk` with the metadata of all classes that are in `original`, too.

    The compiler reads from the metadata what a class file does not have: default values, names of
    parameters, properties. R8 before version 8.9 does not know the format of Kotlin 2.4 and drops
    it. The original metadata still fits, as these classes keep their names and public members.
    """
    with zipfile.ZipFile(original) as before:
        originals = {
            name: before.read(name) for name in before.namelist() if name.endswith(".class")
        }
    with zipfile.ZipFile(shrunk) as jar:
        entries = {name: jar.read(name) for name in jar.namelist()}
    with zipfile.ZipFile(shrunk, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as jar:
        for name, content in sorted(entries.items()):
            jar.writestr(
                zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)),
                _with_metadata(originals[name], content) if name in originals else content,
                8,
            )


def _with_metadata(original: bytes, shrunk: bytes) -> bytes:
    source, target = ClassFile(original), ClassFile(shrunk)
    annotations = source.attributes.get(ATTRIBUTE)
    if annotations is None or any(
        constant[3:] == METADATA for constant in target.constants.values()
    ):
        return shrunk
    if ATTRIBUTE in target.attributes:
        # the compiler needs no metadata of an annotation class, only its own annotations
        if target.access & ANNOTATION:
            return shrunk
        raise SystemExit(
            f"error: {target.name} has annotations of run-time retention beside kotlin.Metadata; "
            "give them binary retention"
        )
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
    head = (
        shrunk[:8]
        + struct.pack(">H", target.count + len(added))
        + shrunk[10 : target.constants_end]
        + b"".join(added)
    )
    (count,) = struct.unpack_from(">H", shrunk, target.attributes_at)
    tail = (
        struct.pack(">H", count + 1)
        + name
        + struct.pack(">I", len(body))
        + body
        + shrunk[target.attributes_at + 2 :]
    )
    return head + shrunk[target.constants_end : target.attributes_at] + tail


def _annotation(
    source: ClassFile, content: bytes, at: int, moved: Callable[[bytes], bytes]
) -> tuple[int, bytes]:
    """Return the end of the annotation at `at`, and its bytes with the constants moved."""
    type_index, pairs = struct.unpack_from(">HH", content, at)
    parts = [moved(source.constants[type_index]), struct.pack(">H", pairs)]
    at += 4
    for _ in range(pairs):
        parts.append(moved(source.constants[struct.unpack_from(">H", content, at)[0]]))
        at, value = _value(source, content, at + 2, moved)
        parts.append(value)
    return at, b"".join(parts)


def _value(
    source: ClassFile, content: bytes, at: int, moved: Callable[[bytes], bytes]
) -> tuple[int, bytes]:
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
        raise ValueError(
            f"an annotation's value has the tag {tag!r}: kotlin.Metadata has numbers, texts and "
            "arrays of them"
        )
    return at + 3, tag + moved(source.constants[struct.unpack_from(">H", content, at + 1)[0]])
