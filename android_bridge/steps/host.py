"""The host: ExecuTorch's Java classes on this machine's JVM, with the Python package's runtime."""

import os
import platform
import subprocess
from pathlib import Path

from steps.compiled import digest_of, made, part_of, unchanged
from steps.modules import MODULES, compile_module
from steps.toolchain import OUT, ROOT, executorch_wheel, java, kotlin, program_path

LIBRARIES = (
    "executorch",
    "executorch_kernels_optimized",
    "executorch_backend_xnnpack",
    "executorch_threadpool",
)


ENTRIES = ("PhoneKt", "StepsKt", "PlansKt", "PredictKt", "ThreadsKt")


def host_library() -> Path:
    """Compile the native library if its source changed, and return its path.

    Raises:
        SystemExit: it does not compile.
    """
    wheel = executorch_wheel()
    source, target = (
        ROOT / "jvm-host" / "src" / "main" / "cpp" / "executorch_host.cpp",
        OUT / "libshoalhost.so",
    )
    jdk = Path(java("javac")).resolve().parent.parent
    include = wheel / "include"
    libraries = [name for name in LIBRARIES if any((wheel / "lib").glob(f"lib{name}.*"))]
    command = [
        program_path("g++", "g++"),
        "-O2",
        "-std=c++20",
        "-shared",
        "-fPIC",
        "-Wall",
        "-DC10_USING_CUSTOM_GENERATED_MACROS",
    ]
    command += [
        f"-isystem{path}"
        for path in (
            include,
            include / "executorch/runtime/core/portable_type/c10",
            jdk / "include",
        )
    ]
    command += [
        f"-isystem{jdk / 'include' / platform.system().lower()}",
        str(source),
        "-o",
        str(part_of(target)),
        f"-L{wheel / 'lib'}",
    ]
    command += [
        "-Wl,--no-as-needed",
        *(f"-l{name}" for name in libraries),
        f"-Wl,-rpath,{wheel / 'lib'}",
    ]
    seen = digest_of([source], command)
    if not unchanged(target, seen):
        if subprocess.run(command).returncode:
            raise SystemExit(f"error: {target.name} does not compile")
        made(target, seen)
    return target


def phone_command(entry: str) -> list[str]:
    """Return the command that runs a phone, or another `entry` of the host, on this JVM.

    The host is compiled if needed. The entry's own arguments are appended to the command.
    """
    library = host_library()
    classpath = os.pathsep.join(
        map(str, [*compile_module(MODULES["jvm-host"]), kotlin() / "lib" / "kotlin-stdlib.jar"])
    )
    small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    return [
        java(),
        *small,
        f"-Dio.shoal.host.library={library}",
        "-cp",
        classpath,
        f"io.shoal.host.{entry}",
    ]
