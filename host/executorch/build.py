"""``python -m host.executorch.build``: compile the library over ExecuTorch's runtime.

The runtime and its headers are in its pip package. The library goes into the user's cache, under a
hash of source, flags, compiler and runtime, so that it is never built twice. With ``--out FOLDER``
it is also copied into a folder beside the runtime's own libraries; a board needs no pip package for
such a folder.
"""

import argparse
import hashlib
import platform
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from host.compiler import CannotCompile, cache_folder, compile_all, find_compiler
from wire.errors import ShoalError

SOURCES = Path(__file__).parent / "source"
LIBRARY, RUNNER = "libshoal_executorch.so", "shoal-train"
RUNTIME = (
    "executorch",
    "executorch_kernels_optimized",
    "executorch_backend_xnnpack",
    "executorch_threadpool",
)
FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wno-deprecated-declarations",
)
DEFINITIONS = ("-DC10_USING_CUSTOM_GENERATED_MACROS", "-DET_EVENT_TRACER_ENABLED")
"""Definitions that the headers need, according to the pip package."""


def build() -> Path:
    """Return the path of the library, compiled first if it is not in the cache.

    Processes that build at the same time do not share work; the last rename wins.

    Raises:
        CannotCompile: ExecuTorch or a C++ compiler is not installed, the compiler fails, or the
            cache cannot be written.
    """
    package, number = find_executorch()
    compiler, compiler_version = find_compiler()
    settings = (
        FLAGS,
        DEFINITIONS,
        RUNTIME,
        package,
        number,
        compiler,
        compiler_version,
        platform.machine(),
        platform.system(),
    )
    digest = hashlib.sha256(repr(settings).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    cache = cache_folder("native")
    folder = cache / f"executorch-{digest.hexdigest()[:24]}"
    if (folder / LIBRARY).exists():
        return folder / LIBRARY
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _compile(compiler, package, number, Path(scratch))
            folder.mkdir(exist_ok=True)
            for name in (RUNNER, LIBRARY):
                (Path(scratch) / name).replace(folder / name)
    except OSError as error:
        raise CannotCompile(
            f"the library for ExecuTorch cannot be built in {cache}: {error}"
        ) from error
    return folder / LIBRARY


def find_executorch() -> tuple[Path, str]:
    """Return the folder of the pip package, and its version.

    The package is not imported, because that would load torch.

    Raises:
        CannotCompile: it is not installed.
    """
    spec = find_spec("executorch")
    try:
        number = version("executorch").split("+")[0]
    except PackageNotFoundError:
        spec, number = None, ""
    if spec is None or not spec.submodule_search_locations:
        raise CannotCompile(
            "the runtime for programs of ExecuTorch is not installed: pip install "
            "'shoal[executorch]'"
        )
    return Path(next(iter(spec.submodule_search_locations))), number


def _compile(compiler: tuple[str, ...], package: Path, number: str, target: Path) -> None:
    """Compile the library and the runner, which find the runtime in their own folder first."""
    include = package / "include"
    common = [*FLAGS, *DEFINITIONS, f'-DSHOAL_EXECUTORCH_VERSION="{number}"']
    common += [
        "-isystem",
        str(include),
        "-isystem",
        str(include / "executorch/runtime/core/portable_type/c10"),
    ]
    paths = [
        "-L" + str(package / "lib"),
        f"-Wl,-rpath,$ORIGIN:{package / 'lib'}",
        "-Wl,-rpath-link," + str(package / "lib"),
    ]
    runtime = ["-Wl,--no-as-needed", *(f"-l{name}" for name in RUNTIME)]
    shared = ["-shared", str(SOURCES / "program.cpp"), "-o", str(target / LIBRARY)]
    compile_all(compiler, [[*common, *shared, *paths, *runtime, "-Wl,--no-undefined"]])
    program = [str(SOURCES / "train.cpp"), "-o", str(target / RUNNER)]
    compile_all(compiler, [[*common, *program, f"-L{target}", "-lshoal_executorch", *paths]])


def main() -> None:
    """Build the library and print its path."""
    parser = argparse.ArgumentParser(
        description="Compiles the library that devices run programs of ExecuTorch with."
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="also copy it, the runtime's libraries and the plain runner into this folder, which "
        "may be moved to another machine of this kind",
    )
    out = parser.parse_args().out
    try:
        library = build()
        if out:
            runtime = (find_executorch()[0] / "lib" / f"lib{name}.so" for name in RUNTIME)
            out.mkdir(parents=True, exist_ok=True)
            for file in (library, library.with_name(RUNNER), *runtime):
                shutil.copy2(file, out / file.name)
        print(out / LIBRARY if out else library)
    except ShoalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
