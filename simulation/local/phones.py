"""Kotlin phones on this machine's Java: the Android client's core and ExecuTorch adapter without
Android (`android_bridge/jvm-host`)."""

import shlex
import subprocess
import sys
from pathlib import Path

from wire.errors import ConfigError

BUILD = Path(__file__).resolve().parents[2] / "android_bridge" / "build"


def phone_command() -> list[str]:
    """The command that runs phones; they are compiled first where something has changed. Its
    options are those of ``PhoneKt``.

    Raises:
        ConfigError: Java, the compiler or ExecuTorch's Python package is missing; the text says
        what would provide it.
    """
    if not BUILD.exists():
        raise ConfigError(f"phones are run from a checkout of the sources: there is no {BUILD}")
    done = subprocess.run([sys.executable, str(BUILD), "phone"], capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(
            f"phones cannot be run here: {(done.stderr or done.stdout).strip()[-1000:]}"
        )
    return shlex.split(done.stdout)
