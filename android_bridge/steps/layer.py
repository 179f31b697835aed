"""The Android layer without Android's own build tools: resources, stubs, archive, D8 and R8."""

import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

from steps import api, stub_check
from steps.compiled import part_of
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
from steps.resources import LINKED, MIN_SDK, link_resources, manifest
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

ARCHIVES = OUT / "archives"
SEEN_BY_AN_APP = ("core", "android", "foreground", "recording")
"""Modules that `sample` is compiled against: those that it names, and what they name as `api`."""
RUN_BY_AN_APP = ("core", "executorch", "android", "foreground")
"""Modules in an app that trains in the foreground."""


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
    """Assemble what Gradle publishes, in `.out/archives`, and return a line with the sizes."""
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    paths = [_archive(name) for name in api.PUBLIC_MODULES]
    sizes = ", ".join(f"{path.name} {path.stat().st_size}" for path in paths)
    return f"{ARCHIVES}: {sizes} bytes"


def _archive(name: str) -> Path:
    """Write a module's archive: a jar for `core`, which needs no Android, an AAR for the others."""
    module, main = MODULES[name], ROOT / name / "src" / "main"
    compile_module(module)
    target = ARCHIVES / f"{api.PUBLISHED.get(name, name)}.{'jar' if name == 'core' else 'aar'}"
    if name == "core":
        shutil.copyfile(module.jar, part_of(target))
    else:
        with zipfile.ZipFile(part_of(target), "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("AndroidManifest.xml", manifest(name))
            archive.write(module.jar, "classes.jar")
            archive.write(link_resources(name) / "R.txt", "R.txt")
            for path in sorted((main / "res").rglob("*.xml")):
                archive.write(path, path.relative_to(main))
            if (rules := _rules(name)).exists():
                archive.write(rules, "proguard.txt")
    part_of(target).replace(target)
    return target


def _rules(name: str) -> Path:
    """Return the path of the rules for R8 that a module brings to an app."""
    return ROOT / name / "consumer-rules.pro"


def app(version: str = KOTLIN) -> str:
    """Compile `sample` and the apps of the pages against the archives' classes.

    `version` is that of the Kotlin compiler.
    """
    aar()
    sources = [*MODULES["sample"].sources("main"), *_programs("kotlin", "kt")]
    classes = [MODULES[name].jar for name in SEEN_BY_AN_APP]
    classpath = [*classes, *resource_jars("sample"), *stub_jars()]
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
    """Dex the archives' classes with D8, and shrink a small app with R8 and the consumer rules.

    Raises:
        SystemExit: R8 removed or renamed a class or member that is found by name at run time.
    """
    aar()
    classes = [MODULES[name].jar for name in RUN_BY_AN_APP]
    _run_r8(
        "D8",
        OUT / "dex",
        ["--release", "--min-api", MIN_SDK],
        [*classes, *(jar for jar in _run_time() if jar != bouncycastle())],
        [*_libraries(), bouncycastle(), *resource_jars("foreground")],
    )
    test = ROOT / "android" / "shrink-test"
    app = compile_java(
        "shrunk-app", [test], [*classes, *stub_jars(), kotlin() / "lib" / "kotlin-stdlib.jar"]
    )
    of_modules = [path for path in map(_rules, RUN_BY_AN_APP) if path.exists()]
    rules = [test / "app-rules.pro", *of_modules]
    options = [
        "--release",
        "--min-api",
        MIN_SDK,
        *(part for path in rules for part in ("--pg-conf", path)),
    ]
    beside = [*resource_jars("foreground"), *_run_time()]
    _run_r8("R8", OUT / "shrunk", options, [app, *classes, *beside], _libraries())
    names = _names(run([program_path("dexdump", "dexdump"), OUT / "shrunk" / "classes.dex"]))
    missing = [name for name in (test / "survivors.txt").read_text().split() if name not in names]
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
