"""Java 8's class library for D8 and R8.

It is made from the signatures that every JDK has for `javac --release 8`.
"""

import zipfile
from pathlib import Path

from steps.compiled import part_of
from steps.toolchain import OUT, Unavailable, java


def java8_library() -> Path:
    """Return the path of a jar of Java 8's public classes without code.

    Raises:
        Unavailable: the JDK has no signatures.
    """
    target = OUT / "java8.jar"
    if target.exists():
        return target
    source = Path(java("javac")).resolve().parent.parent / "lib" / "ct.sym"
    if not source.exists():
        raise Unavailable(
            f"{source} is missing: apt-get install default-jdk-headless would run this"
        )
    _copy(source, part_of(target))
    part_of(target).replace(target)
    return target


def _copy(source: Path, target: Path) -> None:
    with (
        zipfile.ZipFile(source) as signatures,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as jar,
    ):
        seen = set()
        for name in signatures.namelist():
            releases, _, rest = name.partition("/")
            path = rest.removesuffix(".sig") + ".class"
            if not path.startswith(("java/", "javax/")):  # the path begins with a module's name
                path = path.partition("/")[2]
            if (
                "8" in releases
                and rest.endswith(".sig")
                and path.startswith(("java/", "javax/"))
                and path not in seen
            ):
                seen.add(path)
                jar.writestr(path, signatures.read(name))
