"""The Android layer's resources and manifest, compiled and linked by aapt2."""

import shutil
from pathlib import Path

from steps.compiled import digest_of, made, unchanged
from steps.toolchain import OUT, ROOT, Unavailable, program_path, run

MIN_SDK, TARGET_SDK = 26, 36
PACKAGE = "io.shoal.android"
FRAMEWORK = Path("/usr/share/android-framework-res/framework-res.apk")


def link_resources() -> Path:
    """Compile the resources and link them with the manifest, unless that was done already; the folder with `R.txt`,
    `AndroidManifest.xml`, `linked.apk`, and the class `R` under `java/`."""
    main, target = ROOT / "android" / "src" / "main", OUT / "resources"
    files = [main / "AndroidManifest.xml", *sorted(path for path in (main / "res").rglob("*") if path.is_file())]
    seen = digest_of(files, MIN_SDK, TARGET_SDK)
    if unchanged(target / "linked.apk", seen):
        return target
    aapt2 = program_path("aapt2", "aapt")
    if not FRAMEWORK.exists():
        raise Unavailable(f"{FRAMEWORK} is missing: apt-get install android-framework-res would run this")
    shutil.rmtree(target, ignore_errors=True)
    (target / "java").mkdir(parents=True)
    _write_manifest(main / "AndroidManifest.xml", target / "AndroidManifest.xml")
    run([aapt2, "compile", "--dir", main / "res", "-o", target / "compiled.zip"])
    options = ["--java", target / "java", "--non-final-ids", "--output-text-symbols", target / "R.txt", "--auto-add-overlay"]
    options += ["--manifest", target / "AndroidManifest.xml", "-I", FRAMEWORK, "-o", target / "linked.apk"]
    run([aapt2, "link", *options, target / "compiled.zip"])
    made(target / "linked.apk", seen)
    return target


def _write_manifest(source: Path, target: Path) -> None:
    """Add the package and the SDK levels, as Android's build does from `namespace` and `minSdk` of `build.gradle.kts`."""
    text = source.read_text().replace("<manifest ", f'<manifest package="{PACKAGE}" ', 1)
    levels = f'<uses-sdk android:minSdkVersion="{MIN_SDK}" android:targetSdkVersion="{TARGET_SDK}" />'
    target.write_text(text.replace("<uses-permission", f"{levels}\n    <uses-permission", 1))
