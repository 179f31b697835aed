"""Java 8's class library as D8 and R8 read it, from the signatures that every JDK carries for
`javac --release 8`."""

import zipfile
from pathlib import Path

from steps.compiled import part_of
from steps.toolchain import OUT, Unavailable, java


def java8_library() -> Path:
    """A jar of Java 8's public classes, without code."""
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
            if not path.startswith(("java/", "javax/")):  # before it the name of a module
                path = path.partition("/")[2]
            if (
                "8" in releases
                and rest.endswith(".sig")
                and path.startswith(("java/", "javax/"))
                and path not in seen
            ):
                seen.add(path)
                jar.writestr(path, signatures.read(name))
