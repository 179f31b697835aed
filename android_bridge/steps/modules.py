"""Compiles the modules' source folders, and runs their JUnit tests."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from steps.compiled import digest_of, made, part_of, unchanged
from steps.resources import link_resources
from steps.toolchain import KOTLIN, OUT, ROOT, executorch_api, java, junit, kotlin, run

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""Options of a compiler's JVM. It lives for half a minute: code that is optimised in earnest costs
it more than it gives back."""
COMPILER_JVM = " ".join(("-Xmx768m", *SHORT_LIVED))
JAVA_8 = ("-Xjdk-release=8", "-jvm-target", "1.8")
OLDEST_KOTLIN = ("-language-version", "2.1", "-api-version", "2.1", "-Xsuppress-version-warnings")
"""An app's compiler reads what was compiled for the language version before its own, its own and
the one after it."""
OPT_IN = "-opt-in=io.shoal.core.InternalShoalApi"
LIBRARY = (*JAVA_8, *OLDEST_KOTLIN, OPT_IN, "-Xexplicit-api=strict")
SMALL = (
    "-Xno-source-debug-extension",
    "-Xno-call-assertions",
    "-Xno-param-assertions",
    "-Xno-receiver-assertions",
)
"""Without checks that only callers written in Java need, and what only a debugger reads: an app
pays for every byte."""


@dataclass(frozen=True)
class Module:
    """A folder with `src/main/kotlin` and `src/test/kotlin`.

    `needs` are other modules, `libraries` gives further jars to compile and run with; `options` are
    the compiler's for the main part.
    """

    name: str
    needs: tuple[str, ...] = ()
    libraries: Callable[[], list[Path]] = list
    options: tuple[str, ...] = (*LIBRARY, *SMALL)

    def sources(self, part: str) -> list[Path]:
        """The Kotlin files of `main` or `test`."""
        return sorted((ROOT / self.name / "src" / part / "kotlin").rglob("*.kt"))

    @property
    def jar(self) -> Path:
        """Where its classes go."""
        return OUT / f"shoal-{self.name}.jar"

    @property
    def public_jar(self) -> Path:
        """Where its public declarations go, without code (`steps/api.py`)."""
        return OUT / f"shoal-{self.name}-public.jar"


def stub_jars() -> list[Path]:
    """Android's and WorkManager's classes, as far as this library calls them: signatures without
    bodies."""
    return [compile_java("android-stubs", [ROOT / "android" / "stubs"])]


def resource_jars(module: str) -> list[Path]:
    """The class `R` of a module's resources."""
    return [compile_java(f"{module}-resources", [link_resources(module) / "java"])]


def coroutines() -> Path:
    """kotlinx-coroutines, which the compiler's package brings."""
    return kotlin() / "lib" / "kotlinx-coroutines-core-jvm.jar"


def fbjni_shims() -> Path:
    """What ExecuTorch's classes need of fbjni and soloader."""
    return compile_java("fbjni-shims", [ROOT / "jvm-host" / "src" / "main" / "java" / "com"])


def host_jars() -> list[Path]:
    """ExecuTorch's public classes, and what they need of fbjni, soloader and Android, for a desktop
    JVM."""
    return [
        executorch_api(),
        fbjni_shims(),
        compile_java("android-log", [ROOT / "jvm-host" / "src" / "main" / "java" / "android"]),
    ]


MODULES = {
    module.name: module
    for module in (
        Module("core"),
        Module("executorch", ("core",), host_jars),
        Module("android", ("core", "executorch"), stub_jars),
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
            "recording", ("core", "android"), lambda: [*stub_jars(), *resource_jars("recording")]
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
    """Compile into a jar with the compiler of this version, unless it was made from the same
    sources with the same options already."""
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
    """Compile folders of Java sources into `.out/NAME.jar`, unless that was done already."""
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
    """Compile a module's main part and what it needs; all their jars, its own first."""
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
    """The compiler's options to write into `target` what other modules can see of one."""
    plugin, given = (
        kotlin() / "lib" / "jvm-abi-gen.jar",
        {"outputDir": target, "treatInternalAsPrivate": "true", "removePrivateClasses": "true"},
    )
    options = [
        part
        for name, value in given.items()
        for part in ("-P", f"plugin:org.jetbrains.kotlin.jvm.abi:{name}={value}")
    ]
    return (f"-Xplugin={plugin}", *options)


def test_command(module: Module, arguments: list[str]) -> list[str]:
    """Compile a module's tests; the command that runs them."""
    jars, lib = compile_module(module), kotlin() / "lib"
    libraries = [lib / "kotlin-test.jar", lib / "kotlin-test-junit5.jar", *junit()]
    tests = OUT / f"shoal-{module.name}-test.jar"
    own = ",".join(map(str, [module.jar, *(MODULES[name].jar for name in module.needs)]))
    friends = (
        f"-Xfriend-paths={own}",
        OPT_IN,
        "-jvm-target",
        "11",
        "-module-name",
        f"shoal-{module.name}-test",
    )
    compile_kotlin(module.sources("test"), [*jars, *libraries], tests, friends)
    classpath = os.pathsep.join(map(str, [tests, *jars, lib / "kotlin-stdlib.jar", *libraries]))
    given = [
        f"-Dshoal.{name}={os.environ.get(f'SHOAL_KOTLIN_{name.upper()}', '')}"
        for name in ("tests", "hostile")
    ]
    properties = [f"-Dshoal.root={ROOT.parent}", *given]
    launcher = [
        "org.junit.platform.console.ConsoleLauncher",
        "--disable-banner",
        "--fail-if-no-tests",
        "--details=tree",
    ]
    selected = arguments or ["--scan-classpath", str(tests)]
    return [java(), "-Xmx1g", "-ea", *properties, "-cp", classpath, *launcher, *selected]
