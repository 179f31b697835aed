"""Check that native libraries suit memory pages of 16 KB.

Only the library files are checked. Android's build (zipalign) aligns them inside an APK.
"""

import struct

from steps.toolchain import executorch_libraries

PAGE = 16 * 1024
"""Number of bytes of a memory page.

Phones may have such pages from Android 15 on. They refuse libraries for smaller pages.
"""
PT_LOAD = 1
ELF64_LITTLE = b"\x7fELF\x02\x01"


def pages() -> str:
    """Check the native libraries of ExecuTorch for Android that are available here.

    Raises:
        SystemExit: there is no library, or one is laid out for smaller pages.
    """
    folder = executorch_libraries()
    alignments = {
        path: alignment(path.read_bytes(), str(path)) for path in sorted(folder.rglob("*.so"))
    }
    if not alignments:
        raise SystemExit(f"error: {folder} has no native library")
    if wrong := [
        f"{path.relative_to(folder)} ({align} bytes)"
        for path, align in alignments.items()
        if align % PAGE
    ]:
        raise SystemExit(f"error: laid out for pages smaller than {PAGE} bytes: {', '.join(wrong)}")
    return (
        f"{len(alignments)} native libraries are laid out for pages of {PAGE} bytes: "
        f"{', '.join(str(p.relative_to(folder)) for p in alignments)}"
    )


def alignment(library: bytes, origin: str) -> int:
    """Return the smallest alignment, in bytes, of the loaded segments of a 64-bit ELF file.

    See ELF-64 Object File Format, 'Program header'.

    Raises:
        SystemExit: `library` is not a 64-bit little-endian ELF file.
    """
    if not library.startswith(ELF64_LITTLE):
        raise SystemExit(
            f"error: {origin}: begins with {library[:6]!r}, expected a 64-bit little-endian ELF "
            "file"
        )
    (offset,) = struct.unpack_from("<Q", library, 0x20)
    size, count = struct.unpack_from("<HH", library, 0x36)
    headers = [struct.unpack_from("<II6Q", library, offset + size * at) for at in range(count)]
    return min(align for kind, _, _, _, _, _, _, align in headers if kind == PT_LOAD)
