"""This machine's C++ compiler, and the cache folder of its outputs.

Names of files in the cache depend on their inputs, so that nothing is built twice.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from wire.errors import ConfigError


class CannotCompile(ConfigError):
    """Compilation is not possible on this machine; the message names the cause."""


def find_compiler() -> tuple[tuple[str, ...], str]:
    """Return the command of the C++ compiler, and the first line of its version output.

    The command is ``$CXX`` or the first of c++, g++ and clang++ that is installed.

    Raises:
        CannotCompile: no compiler is installed, or it does not print its version.
    """
    named = os.environ.get("CXX")
    for command in [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]:
        if command and (program := shutil.which(command[0])):
            try:
                version = subprocess.run(
                    [*command, "--version"], capture_output=True, text=True, check=True, timeout=60
                ).stdout
            except (OSError, subprocess.SubprocessError) as error:
                raise CannotCompile(f"C++ compiler {program} does not run: {error}") from error
            return tuple(command), version.split("\n")[0]
    raise CannotCompile(
        f"no C++ compiler: CXX={named} is not a program"
        if named
        else "no C++ compiler: none of c++, g++, clang++ is installed"
    )


def compile_all(compiler: Sequence[str], jobs: Sequence[Sequence[str]]) -> None:
    """Run the compiler with the arguments of each job, all at the same time.

    Raises:
        CannotCompile: a job fails; the message has the line of its output that names the error.
    """
    running = [
        subprocess.Popen(
            [*compiler, *job], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for job in jobs
    ]
    outputs = [process.communicate()[0] for process in running]
    for process, output in zip(running, outputs, strict=True):
        if process.returncode:
            lines = [*output.splitlines(), f"status {process.returncode}"]
            problem = next((line for line in lines if "error" in line), lines[0])
            raise CannotCompile(f"C++ compiler {shlex.join(compiler)} failed: {problem}")


def cache_folder(kind: str) -> Path:
    """Return ``$XDG_CACHE_HOME/shoal/KIND``, or ``~/.cache/shoal/KIND``; it need not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / kind
