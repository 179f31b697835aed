"""Compiles the modules' source folders, and runs their JUnit tests."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from steps.toolchain import KOTLIN, OUT, ROOT, executorch_api, java, junit, kotlin

JAVA_8 = ("-Xjdk-release=8", "-jvm-target", "1.8")


@dataclass(frozen=True)
class Module:
    """A folder with `src/main/kotlin` and `src/test/kotlin`.

    `needs` are other modules, `libraries` gives further jars to compile and run with; `java` are folders of Java sources that come
    first, `also` folders of Kotlin sources that belong to other modules; `options` are the compiler's for the main part.
    """

    name: str
    needs: tuple[str, ...] = ()
    libraries: Callable[[], list[Path]] = list
    java: tuple[str, ...] = ()
    options: tuple[str, ...] = (*JAVA_8, "-Xexplicit-api=strict")

    def sources(self, part: str) -> list[Path]:
        """The Kotlin files of `main` or `test`."""
        return sorted((ROOT / self.name / "src" / part / "kotlin").rglob("*.kt"))

    @property
    def jar(self) -> Path:
        """Where its classes go."""
        return OUT / f"shoal-{self.name}.jar"


def stub_jars() -> list[Path]:
    """Android's and WorkManager's classes, as far as this library calls them: signatures without bodies."""
    return [compile_java("android-stubs", [ROOT / "android" / "stubs", ROOT / "android" / "stubs-r"])]


def host_jars() -> list[Path]:
    """ExecuTorch's public classes, and what they need of fbjni, soloader and Android, for a desktop JVM."""
    return [executorch_api(), compile_java("host-shims", [ROOT / "jvm-host" / "src" / "main" / "java"])]


MODULES = {
    module.name: module
    for module in (
        Module("core"),
        Module("executorch", ("core",), host_jars),
        Module("android", ("core", "executorch"), lambda: [*host_jars(), *stub_jars()]),
        Module("jvm-host", ("core", "executorch"), host_jars, options=("-Xjdk-release=11", "-jvm-target", "11", "-Xexplicit-api=strict")),
        Module("sample", ("android",), stub_jars),
    )
}


def unchanged(target: Path, seen: str) -> bool:
    """Whether `target` was made from the same input already; `made` says so the next time."""
    stamp = target.with_suffix(".stamp")
    return target.exists() and stamp.exists() and stamp.read_text() == seen


def made(target: Path, seen: str) -> None:
    """Note what `target` was made from."""
    target.with_suffix(".stamp").write_text(seen)


def digest_of(files: list[Path], *settings: object) -> str:
    """One hash over settings and files."""
    seen = hashlib.sha256(repr(settings).encode())
    for path in files:
        seen.update(str(path).encode() + path.read_bytes())
    return seen.hexdigest()


def compile_kotlin(sources: list[Path], classpath: list[Path], target: Path, options: tuple[str, ...]) -> None:
    """Compile into a jar, unless it was made from the same sources with the same options already."""
    arguments = [*options, "-no-reflect", "-Werror", *(["-cp", os.pathsep.join(map(str, classpath))] if classpath else []), "-d", str(target)]
    seen = digest_of([*sources, *classpath], KOTLIN, arguments)
    if unchanged(target, seen):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    java()
    command = ["bash", str(kotlin() / "bin" / "kotlinc"), *arguments, *map(str, sources)]
    if subprocess.run(command).returncode:
        raise SystemExit(f"error: {target.name} does not compile")
    made(target, seen)


def compile_java(name: str, folders: list[Path]) -> Path:
    """Compile folders of Java sources into `.out/NAME.jar`, unless that was done already."""
    sources = sorted(path for folder in folders for path in folder.rglob("*.java"))
    target, classes = OUT / f"{name}.jar", OUT / f"{name}-classes"
    seen = digest_of(sources)
    if not unchanged(target, seen):
        shutil.rmtree(classes, ignore_errors=True)
        classes.mkdir(parents=True)
        if subprocess.run([java("javac"), "-nowarn", "-Xlint:-options", "--release", "8", "-d", classes, *sources]).returncode:
            raise SystemExit(f"error: {name} does not compile")
        subprocess.run([java("jar"), "cf", target, "-C", classes, "."], check=True)
        made(target, seen)
    return target


def compile_module(module: Module) -> list[Path]:
    """Compile a module's main part and what it needs; all their jars, its own first."""
    jars = list(dict.fromkeys([*(jar for name in module.needs for jar in compile_module(MODULES[name])), *module.libraries()]))
    compile_kotlin(module.sources("main"), jars, module.jar, (*module.options, "-module-name", f"shoal-{module.name}"))
    return [module.jar, *jars]


def run_tests(module: Module, arguments: list[str]) -> int:
    """Compile and run a module's tests; the exit status."""
    jars, lib = compile_module(module), kotlin() / "lib"
    libraries = [lib / "kotlin-test.jar", lib / "kotlin-test-junit5.jar", *junit()]
    tests = OUT / f"shoal-{module.name}-test.jar"
    friends = (f"-Xfriend-paths={module.jar}", "-jvm-target", "11", "-module-name", f"shoal-{module.name}-test")
    compile_kotlin(module.sources("test"), [*jars, *libraries], tests, friends)
    classpath = os.pathsep.join(map(str, [tests, *jars, lib / "kotlin-stdlib.jar", *libraries]))
    properties = [f"-Dshoal.root={ROOT.parent}", f"-Dshoal.tests={os.environ.get('SHOAL_KOTLIN_TESTS', '')}"]
    launcher = ["org.junit.platform.console.ConsoleLauncher", "--disable-banner", "--fail-if-no-tests", "--details=tree"]
    selected = arguments or ["--scan-classpath", str(tests)]
    return subprocess.run([java(), "-Xmx1g", "-ea", *properties, "-cp", classpath, *launcher, *selected]).returncode
