"""The C++ engine's library, compiled on first use into the user's cache directory.

The source is compiled for every instruction set of this kind of machine and linked into one
library, which chooses at run time. The library's name is a hash of source, flags, compiler and
machine: it is never built twice, and never stale after a change.
"""

import ctypes
import hashlib
import os
import platform
import tempfile
import threading
from pathlib import Path
from typing import Any

from host.compiler import CannotCompile, cache_folder, compile_all, find_compiler

SOURCES = Path(__file__).parent / "kernels"
FLAGS = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-ffp-contract=fast",
)
X86: dict[str, tuple[str, ...]] = {
    "baseline": ("-DSHOAL_LANES=4", "-DSHOAL_REGISTERS=16"),
    "avx2": ("-DSHOAL_LANES=8", "-DSHOAL_REGISTERS=16", "-mavx2", "-mfma"),
    "avx512": (
        *("-DSHOAL_LANES=16", "-DSHOAL_REGISTERS=32", "-mavx2", "-mfma"),
        *("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mprefer-vector-width=512"),
    ),
}
ARM: dict[str, tuple[str, ...]] = {"baseline": ("-DSHOAL_LANES=4", "-DSHOAL_REGISTERS=32")}
OTHER: dict[str, tuple[str, ...]] = {"baseline": ("-DSHOAL_LANES=4", "-DSHOAL_REGISTERS=16")}
TARGETS = ("baseline", "avx2", "avx512")
"""Instruction sets, slowest first, in the order of the library's numbers for them."""
_POINTER, _INTEGER, _NUMBER = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "shoal_supports": (_INTEGER, [_INTEGER]),
    "shoal_plan_new": (_POINTER, [_INTEGER, _POINTER, *[_NUMBER] * 5, _POINTER, _NUMBER]),
    "shoal_plan_free": (None, [_POINTER]),
    "shoal_workspace_size": (_NUMBER, [_POINTER, _NUMBER]),
    "shoal_train": (_INTEGER, [_POINTER, _POINTER]),
    "shoal_evaluate": (_INTEGER, [_POINTER, _POINTER]),
    "shoal_forward": (_INTEGER, [_POINTER, _POINTER]),
    "shoal_backward": (_INTEGER, [_POINTER, _POINTER]),
    "shoal_weighted_sum": (None, [_POINTER, _POINTER, _NUMBER, _NUMBER, _POINTER]),
}
"""Types of the result and arguments of the library's functions, by name."""

_loaded: dict[tuple[str | None, ...], ctypes.CDLL] = {}
_lock = threading.Lock()


def load_library() -> ctypes.CDLL:
    """Return the engine's library, compiled first if it is not in the cache.

    Raises:
        CannotCompile: there is no C++ compiler, it fails, or the cache directory cannot be written.
    """
    with _lock:
        settings = tuple(os.environ.get(name) for name in ("CXX", "PATH", "XDG_CACHE_HOME", "HOME"))
        if settings not in _loaded:
            library = ctypes.CDLL(str(build()))
            for name, (result, arguments) in FUNCTIONS.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
            _loaded[settings] = library
        return _loaded[settings]


def build() -> Path:
    """Return the path of the library, compiled first if it is not in the cache.

    Processes that build at the same time do not share work; the last rename wins.

    Raises:
        CannotCompile: there is no C++ compiler, it fails, or the cache directory cannot be written.
    """
    compiler, version = find_compiler()
    machine = platform.machine().lower()
    x86 = machine in ("x86_64", "amd64")
    targets = X86 if x86 else ARM if machine in ("aarch64", "arm64") else OTHER
    common = [*FLAGS, *(["-DSHOAL_X86"] if x86 else [])]
    digest = hashlib.sha256(
        repr((common, targets, compiler, version, machine, platform.system())).encode()
    )
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    folder = cache_folder("native")
    path = folder / f"engine-{digest.hexdigest()[:24]}.so"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _compile(compiler, common, targets, Path(scratch))
            (Path(scratch) / "engine.so").replace(path)
    except OSError as error:
        raise CannotCompile(f"the native engine cannot be built in {folder}: {error}") from error
    return path


def _compile(
    compiler: tuple[str, ...], common: list[str], targets: dict[str, tuple[str, ...]], target: Path
) -> None:
    jobs = [[*common, "-c", str(SOURCES / "library.cpp"), "-o", str(target / "library.o")]]
    for name, flags in targets.items():
        source = ["-c", str(SOURCES / "engine.cpp"), "-o", str(target / f"{name}.o")]
        jobs.append([*common, f"-DSHOAL_TARGET={name}", *flags, *source])
    compile_all(compiler, jobs)
    objects = [job[-1] for job in jobs]
    compile_all(compiler, [["-shared", *objects, "-o", str(target / "engine.so")]])
