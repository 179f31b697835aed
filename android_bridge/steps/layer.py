"""The Android layer without Android's own build tools: resources, stubs, archive, D8 and R8."""

import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

from steps import api, kotlin_metadata, stub_check
from steps.compiled import digest_of, made, part_of, unchanged
from steps.java8 import java8_library
from steps.modules import (
    JAVA_8,
    MODULES,
    SHORT_LIVED,
    compile_java,
    compile_kotlin,
    compile_module,
    fbjni_shims,
    resource_jars,
    stub_jars,
)
from steps.resources import LINKED, MIN_SDK, link_resources
from steps.toolchain import (
    KOTLIN,
    OUT,
    ROOT,
    android_stubs,
    bouncycastle,
    executorch_api,
    java,
    kotlin,
    program_path,
    r8,
    run,
)

OWN_MODULES = ("core", "executorch", "android")
OWN_BYTES = 662_000
RULES = [ROOT / module / "consumer-rules.pro" for module in ("executorch", "android")]


def link() -> str:
    """Link each module's manifest and resources; return the manifests of the linked packages."""
    aapt2 = program_path("aapt2", "aapt")
    return "\n".join(
        run(
            [
                aapt2,
                "dump",
                "xmltree",
                link_resources(module) / "linked.apk",
                "--file",
                "AndroidManifest.xml",
            ]
        ).strip()
        for module in LINKED
    )


def stubs() -> str:
    """Compare every member of the hand-written Android stubs with the API 36.

    Raises:
        SystemExit: a member differs.
    """
    jar = stub_jars()[0]
    count, wrong = stub_check.check(jar, android_stubs(), java("javap"))
    if wrong:
        raise SystemExit("error: the stubs differ from the Android API 36:\n" + "\n".join(wrong))
    return f"{count} members of Android's classes are as in API 36"


def aar() -> str:
    """Assemble `.out/shoal-android.aar` and return a line with its size.

    Raises:
        SystemExit: its own code has `OWN_BYTES` bytes or more.
    """
    compile_module(MODULES["android"])
    target, linked = OUT / "shoal-android.aar", link_resources()
    classes = _shrunk_classes()
    with zipfile.ZipFile(part_of(target), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(linked / "AndroidManifest.xml", "AndroidManifest.xml")
        archive.write(classes, "classes.jar")
        archive.write(linked / "R.txt", "R.txt")
        archive.writestr("proguard.txt", "\n".join(path.read_text() for path in RULES))
    part_of(target).replace(target)
    own_bytes = classes.stat().st_size
    if own_bytes >= OWN_BYTES:
        raise SystemExit(
            f"error: the archive's own code takes {own_bytes} bytes, at most {OWN_BYTES} are "
            "allowed"
        )
    return f"{target}: {target.stat().st_size} bytes, its own code {own_bytes}"


def _shrunk_classes() -> Path:
    """Return the jar of the archive's own code, shrunk to what an app can call."""
    target, libraries = OUT / "aar-classes.jar", [*_libraries(), *_run_time()]
    rules = [ROOT / "android" / "aar-rules.pro", _public_rules(), *RULES]
    seen = digest_of([*(MODULES[name].jar for name in OWN_MODULES), *rules, *libraries])
    if not unchanged(target, seen):
        options = [part for path in rules for part in ("--pg-conf", path)]
        _run_r8("R8", target, ["--classfile", "--release", *options], [_classes_jar()], libraries)
        kotlin_metadata.restore(OUT / "classes.jar", target)
        made(target, seen)
    return target


def app(version: str = KOTLIN) -> str:
    """Compile `sample` and the apps of the pages against the archive with this Kotlin version.

    The modules are not on the classpath, as an app has the archive only.
    """
    aar()
    sources = [*MODULES["sample"].sources("main"), *_programs("kotlin", "kt")]
    beside = [compile_module(MODULES["recording"])[0], *resource_jars("sample")]
    classpath = [OUT / "aar-classes.jar", *beside, *stub_jars()]
    compile_kotlin(
        sources,
        classpath,
        OUT / f"app-{version}.jar",
        JAVA_8,
        version,
    )
    _programs("java", "java")
    compile_java("page-apps", [OUT / "page-java"], [*classpath, kotlin() / "lib/kotlin-stdlib.jar"])
    return f"an app compiles with Kotlin {version}"


def _programs(language: str, ending: str) -> list[Path]:
    """Write each program of the pages about Android as a file in a package of its own.

    Raises:
        SystemExit: the README has no program in this language.
    """
    pages = [(ROOT / "README.md").read_text(), (ROOT.parent / "docs" / "android.md").read_text()]
    programs = [re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) for page in pages]
    if not programs[0]:
        raise SystemExit(f"error: README.md has no program in {language}")
    end = ";" if language == "java" else ""
    files = []
    for number, text in enumerate([*programs[0], *programs[1]]):
        public = re.search(r"public class (\w+)", text)
        name = public[1] if public else "Program"
        files.append(OUT / f"page-{language}" / f"page{number}" / f"{name}.{ending}")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        files[-1].write_text(f"package page{number}{end}\n\n{text}")
    return files


def dex() -> str:
    """Dex the archive's classes with D8, and shrink a small app with R8 and the consumer rules.

    Raises:
        SystemExit: R8 removed or renamed a class or member that is found by name at run time.
    """
    aar()
    classes = OUT / "aar-classes.jar"
    _run_r8(
        "D8",
        OUT / "dex",
        ["--release", "--min-api", MIN_SDK],
        [classes, *(jar for jar in _run_time() if jar != bouncycastle())],
        [*_libraries(), bouncycastle()],
    )
    app = compile_java(
        "shrunk-app",
        [ROOT / "android" / "shrink-test"],
        [classes, *stub_jars(), kotlin() / "lib" / "kotlin-stdlib.jar"],
    )
    rules = [
        ROOT / "android" / "shrink-test" / "app-rules.pro",
        ROOT / "foreground" / "consumer-rules.pro",
    ]
    options = [
        "--release",
        "--min-api",
        MIN_SDK,
        *(part for path in rules for part in ("--pg-conf", path)),
        *_rules(),
    ]
    beside = [compile_module(MODULES["foreground"])[0], *resource_jars("foreground")]
    _run_r8("R8", OUT / "shrunk", options, [app, classes, *beside, *_run_time()], _libraries())
    names = _names(run([program_path("dexdump", "dexdump"), OUT / "shrunk" / "classes.dex"]))
    missing = [
        name
        for name in (ROOT / "android" / "shrink-test" / "survivors.txt").read_text().split()
        if name not in names
    ]
    if missing:
        raise SystemExit(
            f"error: R8 removed or renamed {', '.join(missing)}: the consumer rules must keep "
            "what is found by name"
        )
    sizes = {
        folder.name: sum(path.stat().st_size for path in folder.glob("*.dex"))
        for folder in (OUT / "dex", OUT / "shrunk")
    }
    return (
        f"D8: {sizes['dex']} bytes with Kotlin's library and ExecuTorch's classes; a small app "
        f"after R8: {sizes['shrunk']} bytes"
    )


def _names(listing: str) -> set[str]:
    """Return `CLASS` and `CLASS.MEMBER` for everything in dexdump's listing."""
    names, current = set(), ""
    for line in listing.splitlines():
        if match := re.match(r"\s*Class descriptor\s*: 'L(.*);'", line):
            current = match[1].replace("/", ".")
            names.add(current)
        elif match := re.match(r"\s*name\s*: '(.*)'", line):
            names.add(f"{current}.{match[1]}")
    return names


def _run_r8(
    program: str, target: Path, options: list[Any], inputs: list[Path], libraries: list[Path]
) -> None:
    if not target.suffix:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
    library_options = [part for path in libraries for part in ("--lib", path)]
    run(
        [
            java(),
            "-Xmx1g",
            *SHORT_LIVED,
            "-cp",
            r8(),
            f"com.android.tools.r8.{program}",
            *options,
            *library_options,
            "--output",
            target,
            *inputs,
        ]
    )


def _public_rules() -> Path:
    """Write R8's rules that keep the names of the archive's public classes; return their path."""
    target = OUT / "public-rules.pro"
    names = [
        name
        for module in api.PUBLIC_MODULES
        if module in OWN_MODULES
        for name in api.public_classes(MODULES[module])
    ]
    target.write_text("".join(f"-keep class {name} {{ public protected *; }}\n" for name in names))
    return target


def _rules() -> list[Any]:
    return [part for path in RULES for part in ("--pg-conf", path)]


def _libraries() -> list[Path]:
    """Return the jars of classes that the phone has: Java's, Android's and WorkManager's."""
    return [java8_library(), *stub_jars()]


def _run_time() -> list[Path]:
    """Return the jars that an app has beside this library.

    They are those of ExecuTorch, fbjni, BouncyCastle and Kotlin's library.
    """
    lib = kotlin() / "lib"
    return [
        executorch_api(),
        fbjni_shims(),
        bouncycastle(),
        lib / "kotlin-stdlib.jar",
        lib / "annotations-13.0.jar",
    ]


def _classes_jar() -> Path:
    """Return a jar with the classes of the library's own modules."""
    target = OUT / "classes.jar"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in OWN_MODULES:
            with zipfile.ZipFile(MODULES[name].jar) as jar:
                for entry in jar.namelist():
                    if not entry.endswith("/") and entry != "META-INF/MANIFEST.MF":
                        archive.writestr(entry, jar.read(entry))
    return target
