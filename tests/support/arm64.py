"""Board with a 64-bit ARM processor, emulated by qemu's user mode as a Cortex-A72, the processor of
a Raspberry Pi 4, with Debian's Python and the wheels of `shoal[edge]` for arm64.

It needs neither root nor a kernel that knows programs for ARM. The emulated process has this
machine's files and network, but for the folders of Debian's Python and the files that describe the
processor: with this machine's /proc/cpuinfo, onnxruntime ends in a segmentation fault.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.wheel import PROJECT, ROOT, run_uv

BOARD = ROOT / "build" / "arm64"
"""Folder of the board's files, which is made once."""
PACKAGES = "python3", "libstdc++6"
PROCESSOR = """\
processor\t: 0
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3
"""
"""Content of /proc/cpuinfo on a Cortex-A72."""
NEEDED = {"mmdebstrap": "mmdebstrap", "qemu-aarch64-static": "qemu-user-static"}
"""Programs, with Debian's packages that have them."""


def python_of_board(setup: dict[str, Any]) -> list[str]:
    """Return the command that runs the board's Python, with shoal importable.

    The board is made where it is missing, with the definitions of `deploy/setup`. The test is
    skipped where a program is missing.
    """
    if missing := [package for program, package in NEEDED.items() if not shutil.which(program)]:
        packages = " ".join(missing)
        pytest.skip(f"{packages} not installed: apt-get install {packages} would run this")
    if not (BOARD / "ready").exists():
        shutil.rmtree(BOARD, ignore_errors=True)
        BOARD.mkdir(parents=True)
        _write_system(BOARD / "system")
        _install(BOARD / "packages", setup)
        (BOARD / "ready").touch()
    system = BOARD / "system"
    path = f"PYTHONPATH={BOARD / 'packages'}:{ROOT}"
    return [
        *("env", path, "QEMU_CPU=cortex-a72", "OMP_NUM_THREADS=1", "qemu-aarch64-static"),
        *("-L", str(system), str(system / "usr" / "bin" / "python3.11")),
    ]


def _write_system(system: Path) -> None:
    """Write the files of Debian's Python for arm64, and those that tell of the processor."""
    subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=extract", "--architectures=arm64"),
            *(f"--include={','.join(PACKAGES)}", "bookworm", str(system)),
        ],
        check=True,
        timeout=300,
    )
    processors = system / "sys" / "devices" / "system" / "cpu"
    processors.mkdir(parents=True)
    for name in ("possible", "present"):
        (processors / name).write_text("0\n")
    (system / "proc").mkdir(exist_ok=True)
    (system / "proc" / "cpuinfo").write_text(PROCESSOR)


def _install(packages: Path, setup: dict[str, Any]) -> None:
    """Install the wheels of `shoal[edge]` for arm64, with the pinned versions."""
    project = PROJECT["project"]
    run_uv(
        setup,
        *("pip", "install", "--python-platform", "aarch64-manylinux_2_28"),
        *("--python-version", "3.11", "--only-binary", ":all:", "--target", str(packages)),
        *("-c", str(setup["CONSTRAINTS"])),
        *(*project["dependencies"], *project["optional-dependencies"]["edge"]),
    )
