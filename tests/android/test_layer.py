"""The Android layer without Android: its own tests on a JVM, its calls against API 36, resources, archive, dex."""

import re
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from edge_client.adapters.windows import load_folder
from tests.android.bridge import run_build

ROOT = Path(__file__).parents[2]
BRIDGE = ROOT / "android_bridge"


@pytest.mark.timeout(600)
def test_what_needs_no_android_runs_on_a_jvm(tmp_path: Path) -> None:
    printed = run_build("test", "android", environment={"SHOAL_KOTLIN_TESTS": str(tmp_path)})
    assert "0 tests failed" in printed
    request = x509.load_pem_x509_csr((tmp_path / "request.pem").read_bytes())
    assert request.is_signature_valid
    assert [name.value for name in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["phone-1"]
    recorded = load_folder(tmp_path / "recordings", 4, 2)  # the same files and windows as the recorder's
    cut = np.fromfile(tmp_path / "windows.f32", "<f4").reshape(recorded.train_x.shape)
    np.testing.assert_array_equal(recorded.train_x, cut)


def test_calls_are_those_of_api_36() -> None:
    printed = run_build("stubs")
    found = re.fullmatch(r"(\d+) members of Android's classes are as in API 36\n", printed)
    assert found
    assert int(found[1]) > 60


def test_manifest_and_resources_link() -> None:
    printed = run_build("link")
    assert 'package="io.shoal.android"' in printed
    for words in ("minSdkVersion(0x0101020c)=26", "FOREGROUND_SERVICE_DATA_SYNC", "foregroundServiceType(0x01010599)=0x00000001"):
        assert words in printed


@pytest.mark.timeout(600)
def test_the_archive_is_small_and_its_entry_points_survive_shrinking() -> None:
    printed = run_build("dex")  # assembles the archive, dexes it, and shrinks an app in Java
    assert re.match(r"D8: \d+ bytes .* R8: \d+ bytes", printed)
    with zipfile.ZipFile(BRIDGE / ".out" / "shoal-android.aar") as archive:
        names = set(archive.namelist())
        assert names >= {"AndroidManifest.xml", "classes.jar", "R.txt", "proguard.txt", "res/values/strings.xml"}
        assert archive.getinfo("classes.jar").file_size < 440_000
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


def test_nothing_beyond_kotlin_executorch_and_workmanager_is_needed() -> None:
    allowed = {"libs.executorch", "libs.work.runtime", 'project(":core")', 'project(":executorch")'}
    for module in ("core", "executorch", "android"):
        text = (BRIDGE / module / "build.gradle.kts").read_text()
        needed = set(re.findall(r"^\s+(?:api|implementation)\((.*)\)$", text, re.MULTILINE))
        assert needed <= allowed, module
