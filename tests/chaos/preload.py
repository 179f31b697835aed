"""Compiles the libraries that are preloaded into a service."""

import subprocess
from pathlib import Path


def build(name: str, to: Path) -> Path:
    """Compile ``NAME.c``, which lies here, into a folder with the system's C compiler.

    Raises:
        OSError, subprocess.CalledProcessError: there is none, or it fails.
    """
    library = to / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-o", str(library), str(source), "-ldl"],
        check=True,
    )
    return library
