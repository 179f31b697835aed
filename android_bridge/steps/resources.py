"""Compiles and links resources and manifests of the Android modules with aapt2."""

import re
import shutil
from pathlib import Path

from steps.compiled import digest_of, made, unchanged
from steps.toolchain import OUT, ROOT, Unavailable, program_path, run

MIN_SDK, TARGET_SDK = 26, 36
LINKED = ("android", "foreground", "recording", "sample")
"""Modules with a manifest that is not empty."""
FRAMEWORK = Path("/usr/share/android-framework-res/framework-res.apk")


def link_resources(module: str = "android") -> Path:
    """Compile a module's resources, link them with its manifest, and return the target folder.

    Nothing is done if the sources have not changed. The folder has `R.txt`, `AndroidManifest.xml`,
    `linked.apk`, and the class `R` under `java/`.

    Raises:
        Unavailable: aapt2 or Android's resources are not installed.
    """
    main, target = ROOT / module / "src" / "main", OUT / f"{module}-resources"
    files = [
        main / "AndroidManifest.xml",
        *sorted(path for path in (main / "res").rglob("*") if path.is_file()),
    ]
    seen = digest_of(files, MIN_SDK, TARGET_SDK)
    if unchanged(target / "linked.apk", seen):
        return target
    aapt2 = program_path("aapt2", "aapt")
    if not FRAMEWORK.exists():
        raise Unavailable(
            f"{FRAMEWORK} is missing: apt-get install android-framework-res would run this"
        )
    shutil.rmtree(target, ignore_errors=True)
    (target / "java").mkdir(parents=True)
    # the service type `health` came with API 34, and Debian's resources are of API 29
    text = re.sub(r'\s+android:foregroundServiceType="health"', "", manifest(module))
    (target / "AndroidManifest.xml").write_text(text)
    compiled = [target / "compiled.zip"] if (main / "res").is_dir() else []
    for path in compiled:
        run([aapt2, "compile", "--dir", main / "res", "-o", path])
    options = [
        "--java",
        target / "java",
        "--non-final-ids",
        "--output-text-symbols",
        target / "R.txt",
        "--auto-add-overlay",
    ]
    options += [
        "--manifest",
        target / "AndroidManifest.xml",
        "-I",
        FRAMEWORK,
        "-o",
        target / "linked.apk",
    ]
    run([aapt2, "link", *options, *compiled])
    made(target / "linked.apk", seen)
    return target


def manifest(module: str) -> str:
    """Return a module's manifest with the package and the SDK levels.

    Android's build takes them from `namespace` and `minSdk` of `build.gradle.kts`.
    """
    levels = (
        f'<uses-sdk android:minSdkVersion="{MIN_SDK}" android:targetSdkVersion="{TARGET_SDK}" />'
    )
    return re.sub(
        r"<manifest ([^>]*>\n)",
        rf'<manifest package="io.shoal.{module}" \1    {levels}\n',
        (ROOT / module / "src" / "main" / "AndroidManifest.xml").read_text(),
        count=1,
    )
