"""The modules of the library: compiling their sources, and commands to run their JUnit tests."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from steps.compiled import digest_of, made, part_of, unchanged
from steps.resources import link_resources
from steps.toolchain import (
    KOTLIN,
    OUT,
    ROOT,
    Unavailable,
    bouncycastle,
    executorch_api,
    java,
    junit,
    kotlin,
    run,
)

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""Options of a compiler's JVM. It runs for half a minute, too short for optimised code to pay."""
COMPILER_JVM = " ".join(("-Xmx768m", *SHORT_LIVED))
JAVA_8 = ("-Xjdk-release=8", "-jvm-target", "1.8")
OLDEST_KOTLIN = ("-language-version", "2.1", "-api-version", "2.1", "-Xsuppress-version-warnings")
"""Options for the oldest supported Kotlin of an app.

A compiler reads classes of its own language version, the one before and the one after.
"""
OPT_IN = "-opt-in=io.shoal.core.InternalShoalApi"
LIBRARY = (*JAVA_8, *OLDEST_KOTLIN, OPT_IN, "-Xexplicit-api=strict")
SMALL = (
    "-Xno-source-debug-extension",
    "-Xno-call-assertions",
    "-Xno-receiver-assertions",
)
"""Options that save bytes in an app: no checks of what Java returns, no data for debuggers."""
UNCHECKED = "-Xno-param-assertions"
"""Option of modules that apps hardly call: no checks of parameters for callers in Java."""


@dataclass(frozen=True)
class Module:
    """A folder with `src/main/kotlin` and `src/test/kotlin`.

    `needs` are the modules that it depends on. `libraries` returns further jars to compile and run
    with. `options` are the compiler's options for the main part.
    """

    name: str
    needs: tuple[str, ...] = ()
    libraries: Callable[[], list[Path]] = list
    options: tuple[str, ...] = (*LIBRARY, *SMALL, UNCHECKED)

    def sources(self, part: str) -> list[Path]:
        """Return the Kotlin files of `main` or `test`, with those that the build writes."""
        written = [version_source()] if (self.name, part) == ("core", "main") else []
        return [*sorted((ROOT / self.name / "src" / part / "kotlin").rglob("*.kt")), *written]

    @property
    def jar(self) -> Path:
        """Path of the jar with the module's classes."""
        return OUT / f"shoal-{self.name}.jar"

    @property
    def public_jar(self) -> Path:
        """Path of the jar with the module's public declarations, without code (`steps/api.py`)."""
        return OUT / f"shoal-{self.name}-public.jar"


def version_source() -> Path:
    """Write the Kotlin source with the library's version, and return its path.

    The version is that of `gradle.properties`. Gradle writes the same (`core/build.gradle.kts`).
    """
    lines = (ROOT / "gradle.properties").read_text().splitlines()
    (version,) = (line.partition("=")[2] for line in lines if line.startswith("shoal.version="))
    text = (ROOT / "core" / "BuildVersion.kt.template").read_text().replace("@VERSION@", version)
    target = OUT / "BuildVersion.kt"
    if not target.exists() or target.read_text() != text:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return target


def stub_jars() -> list[Path]:
    """Return the jar of stubs of the Android and WorkManager classes that this library calls."""
    return [compile_java("android-stubs", [ROOT / "android" / "stubs"])]


def resource_jars(module: str) -> list[Path]:
    """Return the jar with the class `R` of a module's resources."""
    return [compile_java(f"{module}-resources", [link_resources(module) / "java"])]


def coroutines() -> Path:
    """Return the jar of kotlinx-coroutines, which is in the compiler's package."""
    return kotlin() / "lib" / "kotlinx-coroutines-core-jvm.jar"


def fbjni_shims() -> Path:
    """Return the jar of the fbjni and soloader classes that ExecuTorch's classes need."""
    return compile_java("fbjni-shims", [ROOT / "jvm-host" / "src" / "main" / "java" / "com"])


def host_jars() -> list[Path]:
    """Return the jars to run ExecuTorch's classes on a desktop JVM.

    They have the public classes and the fbjni, soloader and Android classes that those need.
    """
    return [
        executorch_api(),
        fbjni_shims(),
        compile_java("android-log", [ROOT / "jvm-host" / "src" / "main" / "java" / "android"]),
    ]


MODULES = {
    module.name: module
    for module in (
        Module("core", libraries=lambda: [bouncycastle()]),
        Module("executorch", ("core",), host_jars),
        Module("android", ("core", "executorch"), stub_jars, (*LIBRARY, *SMALL)),
        Module(
            "jvm-host",
            ("core", "executorch"),
            host_jars,
            options=("-Xjdk-release=11", "-jvm-target", "11", OPT_IN, "-Xexplicit-api=strict"),
        ),
        Module("ktx", ("core", "android"), lambda: [*stub_jars(), coroutines()]),
        Module(
            "foreground", ("core", "android"), lambda: [*stub_jars(), *resource_jars("foreground")]
        ),
        Module(
            "recording",
            ("core", "android"),
            lambda: [*stub_jars(), *resource_jars("recording")],
            (*LIBRARY, *SMALL),
        ),
        Module(
            "sample",
            ("android", "recording"),
            lambda: resource_jars("sample"),
            options=(*JAVA_8, "-Xexplicit-api=strict"),
        ),
    )
}


def compile_kotlin(
    sources: list[Path],
    classpath: list[Path],
    target: Path,
    options: tuple[str, ...],
    version: str = KOTLIN,
) -> None:
    """Compile Kotlin sources into the jar `target` if the sources or the options changed.

    Raises:
        SystemExit: they do not compile.
    """
    arguments = [
        *options,
        "-no-reflect",
        "-Werror",
        *(["-cp", os.pathsep.join(map(str, classpath))] if classpath else []),
        "-d",
        str(part_of(target)),
    ]
    seen = digest_of([*sources, *classpath], version, arguments)
    if unchanged(target, seen):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    java()
    command = ["bash", str(kotlin(version) / "bin" / "kotlinc"), *arguments, *map(str, sources)]
    if subprocess.run(command, env={"JAVA_OPTS": COMPILER_JVM} | os.environ).returncode:
        raise SystemExit(f"error: {target.name} does not compile")
    made(target, seen)


def compile_java(name: str, folders: list[Path], classpath: Sequence[Path] = ()) -> Path:
    """Compile folders of Java sources into `.out/NAME.jar` if they changed; return its path."""
    sources = sorted(path for folder in folders for path in folder.rglob("*.java"))
    target, classes = OUT / f"{name}.jar", OUT / f"{name}-classes"
    seen = digest_of([*sources, *classpath])
    if not unchanged(target, seen):
        shutil.rmtree(classes, ignore_errors=True)
        classes.mkdir(parents=True)
        path = ["-cp", os.pathsep.join(map(str, classpath))] if classpath else []
        run(
            [
                java("javac"),
                "-nowarn",
                "-Xlint:-options",
                "--release",
                "8",
                *path,
                "-d",
                classes,
                *sources,
            ]
        )
        run([java("jar"), "cf", part_of(target), "-C", classes, "."])
        made(target, seen)
    return target


def compile_module(module: Module) -> list[Path]:
    """Compile a module's main part and its dependencies; return all jars, its own first."""
    jars = list(
        dict.fromkeys(
            [
                *(jar for name in module.needs for jar in compile_module(MODULES[name])),
                *module.libraries(),
            ]
        )
    )
    options = (
        *module.options,
        "-module-name",
        f"shoal-{module.name}",
        *public_declarations(module.public_jar),
    )
    compile_kotlin(module.sources("main"), jars, module.jar, options)
    return [module.jar, *jars]


def public_declarations(target: Path) -> tuple[str, ...]:
    """Return the compiler's options that write a module's public declarations into `target`."""
    plugin, settings = (
        kotlin() / "lib" / "jvm-abi-gen.jar",
        {"outputDir": target, "treatInternalAsPrivate": "true", "removePrivateClasses": "true"},
    )
    options = [
        part
        for name, value in settings.items()
        for part in ("-P", f"plugin:org.jetbrains.kotlin.jvm.abi:{name}={value}")
    ]
    return (f"-Xplugin={plugin}", *options)


def written_vectors(module: Module) -> Path:
    """Write what a module's tests compare with Python, and return its folder.

    Raises:
        Unavailable: this Python lacks a package.
    """
    folder = OUT / f"{module.name}-vectors"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    code = (
        "import sys, pathlib, tests.android.kotlin_vectors as v; v.write(pathlib.Path(sys.argv[1]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise Unavailable(
            f"{process.stderr.strip().splitlines()[-1]}: make setup installs it; run this script "
            "with .venv/bin/python"
        )
    return folder


def test_command(module: Module, arguments: list[str]) -> list[str]:
    """Compile a module's tests and return the command that runs them.

    `arguments` select tests for JUnit's launcher. Without them all tests run.
    """
    jars, lib = compile_module(module), kotlin() / "lib"
    libraries = [lib / "kotlin-test.jar", lib / "kotlin-test-junit5.jar", *junit()]
    tests = OUT / f"shoal-{module.name}-test.jar"
    module_jars = ",".join(map(str, [module.jar, *(MODULES[name].jar for name in module.needs)]))
    friends = (
        f"-Xfriend-paths={module_jars}",
        OPT_IN,
        "-jvm-target",
        "11",
        "-module-name",
        f"shoal-{module.name}-test",
    )
    compile_kotlin(module.sources("test"), [*jars, *libraries], tests, friends)
    classpath = os.pathsep.join(map(str, [tests, *jars, lib / "kotlin-stdlib.jar", *libraries]))
    vectors = os.environ.get("SHOAL_KOTLIN_TESTS")
    if not vectors and module.name in ("core", "android"):
        vectors = str(written_vectors(module))
    properties = [
        f"-Dshoal.root={ROOT.parent}",
        f"-Dshoal.tests={vectors or ''}",
        f"-Dshoal.hostile={os.environ.get('SHOAL_KOTLIN_HOSTILE', '')}",
    ]
    launcher = [
        "org.junit.platform.console.ConsoleLauncher",
        "--disable-banner",
        "--fail-if-no-tests",
        "--details=tree",
    ]
    selected = arguments or ["--scan-classpath", str(tests)]
    return [java(), "-Xmx1g", "-ea", *properties, "-cp", classpath, *launcher, *selected]
