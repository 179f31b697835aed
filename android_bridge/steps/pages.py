"""Native libraries and the size of memory pages: from Android 15 on a phone may have pages of 16
KB, and then loads no library that is laid out for less.

Only what a library's own file says is checked; that it lies at such a boundary inside an APK is the
work of Android's build (zipalign).
"""

import struct

from steps.toolchain import executorch_libraries

PAGE = 16 * 1024
PT_LOAD = 1
ELF64_LITTLE = b"\x7fELF\x02\x01"


def pages() -> str:
    """Check ExecuTorch's native libraries for Android, as far as they can be had here."""
    folder = executorch_libraries()
    found = {path: alignment(path.read_bytes(), str(path)) for path in sorted(folder.rglob("*.so"))}
    if not found:
        raise SystemExit(f"error: {folder}: there is no native library in it")
    if wrong := [
        f"{path.relative_to(folder)} ({align} bytes)"
        for path, align in found.items()
        if align % PAGE
    ]:
        raise SystemExit(f"error: laid out for pages smaller than {PAGE} bytes: {', '.join(wrong)}")
    return (
        f"{len(found)} native libraries are laid out for pages of {PAGE} bytes: "
        f"{', '.join(str(p.relative_to(folder)) for p in found)}"
    )


def alignment(library: bytes, origin: str) -> int:
    """The least alignment, in bytes, of the segments that are loaded of a 64-bit ELF file (ELF-64
    Object File Format, 'Program header')."""
    if not library.startswith(ELF64_LITTLE):
        raise SystemExit(
            f"error: {origin}: begins with {library[:6]!r}, expected a 64-bit little-endian ELF "
            "file"
        )
    (offset,) = struct.unpack_from("<Q", library, 0x20)
    size, count = struct.unpack_from("<HH", library, 0x36)
    headers = [struct.unpack_from("<II6Q", library, offset + size * at) for at in range(count)]
    return min(align for kind, _, _, _, _, _, _, align in headers if kind == PT_LOAD)
