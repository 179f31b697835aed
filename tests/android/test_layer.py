"""The Android layer without Android: its own tests on a JVM, its calls against API 36, resources, archive, dex."""

import importlib
import json
import re
import struct
import subprocess
import tomllib
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from edge_client.adapters.windows import load_folder
from tests.android.bridge import run_build
from tests.android.kotlin_vectors import write_executor_cases
from tests.enrolment import EnrolmentBench, enrolment_bench
from wire.enrolment import Token

ROOT = Path(__file__).parents[2]
BRIDGE = ROOT / "android_bridge"


STRESS_ACTS = 10_000
ENROL_DAYS = 0.0045
"""Certificates of six minutes, which began ten minutes ago: they are to be renewed at once."""


def enrolment_service(bench: EnrolmentBench) -> dict[str, str]:
    """A service's address, and tokens by what they are."""
    used, expired = bench.token(), bench.token(expires_in_s=1.0)
    bench.enrol(used, name="pi-1")
    bench.clock.now_s += 5.0
    return {
        "url": bench.url,
        "good": bench.token(),
        "used": used,
        "bound": bench.token(device_id="phone-9"),
        "approve": bench.token(approve=True),
        "clock": bench.token(),
        "expired": expired,
        "unknown": str(Token(bytes(16), bench.authority.fingerprint)),
        "elsewhere": str(Token(bytes(16), "00" * 32)),
    }


@pytest.mark.timeout(600)
def test_what_needs_no_android_runs_on_a_jvm(tmp_path: Path) -> None:
    write_executor_cases(tmp_path / "executor")
    with enrolment_bench(tmp_path / "enrolment", serves=True, days=ENROL_DAYS) as bench:
        (tmp_path / "enrolment.json").write_text(json.dumps(enrolment_service(bench)))
        printed = run_build("test", "android", environment={"SHOAL_KOTLIN_TESTS": str(tmp_path)})
    assert "0 tests failed" in printed
    assert re.search(r"\[ +1 tests aborted +\]", printed), "all but the one of tests/android/test_enrolment.py have what they need"
    request = x509.load_pem_x509_csr((tmp_path / "request.pem").read_bytes())
    assert request.is_signature_valid
    assert [name.value for name in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["phone-1"]
    recorded = load_folder(tmp_path / "recordings", 4, 2)  # the same files and windows as the recorder's
    cut = np.fromfile(tmp_path / "windows.f32", "<f4").reshape(recorded.train_x.shape)
    np.testing.assert_array_equal(recorded.train_x, cut)


@pytest.mark.timeout(600)
def test_flows_tell_what_the_fleet_does() -> None:
    assert "0 tests failed" in run_build("test", "ktx")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_acts_of_an_app_with_two_fleets_lose_nothing_and_mix_nothing_up(tmp_path: Path) -> None:
    write_executor_cases(tmp_path / "executor")
    environment = {"SHOAL_KOTLIN_TESTS": str(tmp_path), "SHOAL_KOTLIN_HOSTILE": str(STRESS_ACTS)}
    printed = run_build("test", "android", "--select-class=io.shoal.android.StressTest", environment=environment)
    assert "0 tests failed" in printed
    assert f"{STRESS_ACTS} acts of the app" in printed


def test_calls_are_those_of_api_36() -> None:
    printed = run_build("stubs")
    found = re.fullmatch(r"(\d+) members of Android's classes are as in API 36\n", printed)
    assert found
    assert int(found[1]) > 60


def test_native_libraries_are_laid_out_for_pages_of_16_kb() -> None:
    assert re.match(r"\d+ native libraries are laid out for pages of 16384 bytes: .*arm64-v8a/libexecutorch.so", run_build("pages"))


def test_a_library_for_smaller_pages_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BRIDGE))
    pages = importlib.import_module("steps.pages")
    for align in (4096, 65536):
        header = b"\x7fELF\x02\x01" + bytes(0x1A) + struct.pack("<Q", 64) + bytes(14) + struct.pack("<HH", 56, 2) + bytes(6)
        segments = struct.pack("<II6Q", 1, 5, 0, 0, 0, 0, 0, align) + struct.pack("<II6Q", 6, 4, 0, 0, 0, 0, 0, 8)
        assert pages.alignment(header + segments, "lib.so") == align
    (tmp_path / "lib.so").write_bytes(header + segments.replace(struct.pack("<Q", 65536), struct.pack("<Q", 4096)))
    monkeypatch.setattr(pages, "executorch_libraries", lambda: tmp_path)
    with pytest.raises(SystemExit, match=r"smaller than 16384 bytes: lib\.so \(4096 bytes\)"):
        pages.pages()
    (tmp_path / "lib.so").write_bytes(b"no library")
    with pytest.raises(SystemExit, match="expected a 64-bit little-endian ELF file"):
        pages.pages()


def test_every_artefact_is_published_with_sources_licence_and_developers() -> None:
    pom = (BRIDGE / "build.gradle.kts").read_text()
    licence = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    for words in (f'name = "{licence}"', "developers {", "scm {", "description ="):
        assert words in pom
    for module in ("core", "executorch", "android", "ktx", "foreground", "recording"):
        text = (BRIDGE / module / "build.gradle.kts").read_text()
        assert all(words in text for words in ("`maven-publish`", "withSourcesJar()", "withJavadocJar()")), module
        assert f'":{module}"' in (BRIDGE / "settings.gradle.kts").read_text()


def test_manifest_and_resources_link() -> None:
    trees = re.split(r"(?=E: manifest)", run_build("link"))
    linked = {match[1]: tree for tree in trees if (match := re.search(r'package="io\.shoal\.(\w+)"', tree))}
    assert set(linked) == {"android", "foreground", "recording", "sample"}
    for words in ("minSdkVersion(0x0101020c)=26", "android.permission.INTERNET"):
        assert words in linked["android"]
    assert "FOREGROUND_SERVICE" not in linked["android"], "an app without the artefacts owes Play no word on foreground services"
    for words in ("FOREGROUND_SERVICE_DATA_SYNC", "foregroundServiceType(0x01010599)=0x00000001"):
        assert words in linked["foreground"]
    assert 'android:foregroundServiceType="health"' in (BRIDGE / "recording/src/main/AndroidManifest.xml").read_text()


def test_every_text_of_the_sample_is_in_every_language_and_none_stands_in_the_code() -> None:
    res = BRIDGE / "sample/src/main/res"
    told = {
        path.parent.name: dict(re.findall(r'<string name="(\w+)">([^<]+)</string>', path.read_text()))
        for path in res.glob("values*/strings.xml")
    }
    assert len(told) > 1
    first = told["values"]
    for texts in told.values():
        assert texts.keys() == first.keys()
        for name, text in texts.items():
            assert sorted(re.findall(r"%\d\$\w", text)) == sorted(re.findall(r"%\d\$\w", first[name])), name
    layout = (res / "layout/main.xml").read_text()
    shown = re.findall(r'android:(?:text|contentDescription)="([^"]*)"', layout)
    assert all(text.removeprefix("@string/") in first for text in shown)
    code = "".join(path.read_text() for path in (BRIDGE / "sample/src/main").rglob("*.kt"))
    used = {text.removeprefix("@string/") for text in shown} | set(re.findall(r"R\.string\.(\w+)", code)) | {"app_name"}
    assert used == first.keys()


def test_what_a_screen_reader_needs_is_in_the_sample() -> None:
    layout = ElementTree.parse(BRIDGE / "sample/src/main/res/layout/main.xml").getroot()
    android = "{http://schemas.android.com/apk/res/android}"
    buttons, texts = layout.findall(".//Button"), layout.findall(".//TextView")
    assert buttons
    assert all(button.get(f"{android}minHeight") == "48dp" for button in buttons)
    assert sum(text.get(f"{android}accessibilityHeading") == "true" for text in texts) == 4
    changing = [text.get(f"{android}id") for text in texts if text.get(f"{android}id")]
    alive = [text.get(f"{android}id") for text in texts if text.get(f"{android}accessibilityLiveRegion") == "polite"]
    assert changing == alive, "a text that changes by itself is read aloud"
    assert all(bar.get(f"{android}contentDescription") for bar in layout.findall(".//ProgressBar"))


def test_the_lines_of_the_readme_are_fifteen_at_most() -> None:
    code = re.search(r"```kotlin\n(import .*?)```", (BRIDGE / "README.md").read_text(), re.DOTALL)
    assert code
    assert len([line for line in code[1].splitlines() if line.strip()]) <= 15


def test_the_recipe_for_emulators_names_what_there_is() -> None:
    recipe = yaml.safe_load((BRIDGE / "ci/android.yml").read_text())
    assert recipe["jobs"]["emulators"]["strategy"]["matrix"]["api"] == [26, 31, 34, 36]
    drive = BRIDGE / "ci/drive"
    subprocess.run(["bash", "-n", str(drive)], check=True)
    buttons = re.findall(r'^tap "([^"]+)"', drive.read_text(), re.MULTILINE)
    assert buttons
    words = (BRIDGE / "sample/src/main/res/values/strings.xml").read_text()
    assert [button for button in buttons if f">{button}<" not in words] == []


@pytest.mark.timeout(600)
def test_the_archive_is_small_and_its_entry_points_survive_shrinking() -> None:
    printed = run_build("dex")  # assembles the archive, dexes it, and shrinks an app in Java
    assert re.match(r"D8: \d+ bytes .* R8: \d+ bytes", printed)
    with zipfile.ZipFile(BRIDGE / ".out" / "shoal-android.aar") as archive:
        names = set(archive.namelist())
        assert names >= {"AndroidManifest.xml", "classes.jar", "R.txt", "proguard.txt"}
        assert archive.getinfo("classes.jar").file_size < 580_000
        rules = archive.read("proguard.txt").decode()
        assert "io.shoal.android.RoundWorker" in rules


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.1.21", pytest.param("2.2.21", marks=pytest.mark.slow), "2.4.20"])
def test_an_app_compiles_against_the_archive_with_this_compiler(version: str) -> None:
    assert run_build("app", version) == f"an app compiles with Kotlin {version}\n"


def test_public_declarations_are_those_that_the_repository_says() -> None:
    kept = {path: path.read_text() for path in (BRIDGE / "api").glob("*.api")}
    try:
        assert run_build("api") == "the public declarations are those of api/\n", "see git diff; keep what build api wrote if it is meant"
    finally:
        for path, text in kept.items():
            path.write_text(text)


def test_versions_are_the_same_everywhere() -> None:
    catalog = tomllib.loads((BRIDGE / "gradle" / "libs.versions.toml").read_text())["versions"]
    toolchain = (BRIDGE / "steps" / "toolchain.py").read_text()
    assert f'KOTLIN = "{catalog["kotlin"]}"' in toolchain
    assert f'OLDER_KOTLINS = ("{catalog["kotlin-oldest"]}", ' in toolchain
    loader = (BRIDGE / "executorch/src/main/kotlin/io/shoal/executorch/ExecutorchLoader.kt").read_text()
    assert f'VERSION: String = "{catalog["executorch"]}"' in loader
    pinned = re.search(r"^executorch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert pinned[1] == catalog["executorch"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"shoal.version={project}" in (BRIDGE / "gradle.properties").read_text()


def test_flows_are_compiled_against_the_coroutines_that_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    run_build("compile", "ktx")
    monkeypatch.syspath_prepend(str(BRIDGE))
    catalog = tomllib.loads((BRIDGE / "gradle" / "libs.versions.toml").read_text())["versions"]
    with zipfile.ZipFile(importlib.import_module("steps.modules").coroutines()) as jar:
        assert jar.read("META-INF/kotlinx_coroutines_core.version").decode() == catalog["coroutines"]


def test_nothing_beyond_kotlin_executorch_and_workmanager_is_needed() -> None:
    allowed = {"libs.executorch", "libs.work.runtime", 'project(":core")', 'project(":executorch")'}
    for module in ("core", "executorch", "android"):  # `ktx` needs coroutines: that is why it is apart
        text = (BRIDGE / module / "build.gradle.kts").read_text()
        needed = set(re.findall(r"^\s+(?:api|implementation)\((.*)\)$", text, re.MULTILINE))
        assert needed <= allowed, module
