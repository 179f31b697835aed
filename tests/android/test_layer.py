"""The Android layer without Android: its own tests on a JVM, its calls against API 36, resources,
archive, dex."""

import hashlib
import importlib
import json
import os
import re
import struct
import subprocess
import tomllib
import zipfile
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from edge_client.data.windows import load_folder
from tests.android.bridge import run_build
from tests.android.kotlin_vectors import write_executor_cases
from tests.support.enrolment import EnrolmentBench, enrolment_bench
from wire.identity.certificates import certificate_digest
from wire.identity.enrolment import Token

ROOT = Path(__file__).parents[2]
BRIDGE = ROOT / "android_bridge"


STRESS_ACTS = 10_000
MOST_DECLARATIONS = 40
"""Maximum number of public declarations of `shoal-android`, which an app developer has to read."""
MARKED = """
import io.shoal.core.InternalShoalApi

fun one(number: Int = 1): Int = number

@InternalShoalApi
fun one(text: String = "1"): String = text

class Shown {
    val here: Int = 1

    @InternalShoalApi
    var between: Int = 2

    @InternalShoalApi
    class Inner {
        class Innermost
    }
}

@InternalShoalApi
interface Between {
    fun act()
}

abstract class Kind {
    class Empty internal constructor() : Kind()
}

interface Tag

annotation class Note
"""
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
        "unknown": str(Token(bytes(16), certificate_digest(bench.authority.certificate))),
        "elsewhere": str(Token(bytes(16), "00" * 32)),
    }


@pytest.mark.full
@pytest.mark.timeout(600)
def test_what_needs_no_android_runs_on_a_jvm(tmp_path: Path) -> None:
    write_executor_cases(tmp_path / "executor")
    with enrolment_bench(tmp_path / "enrolment", serves=True, days=ENROL_DAYS) as bench:
        (tmp_path / "enrolment.json").write_text(json.dumps(enrolment_service(bench)))
        printed = run_build("test", "android", environment={"SHOAL_KOTLIN_TESTS": str(tmp_path)})
    assert "0 tests failed" in printed
    assert re.search(r"\[ +1 tests aborted +\]", printed), (
        "all but the one of tests/android/test_enrolment.py have what they need"
    )
    request = x509.load_pem_x509_csr((tmp_path / "request.pem").read_bytes())
    assert request.is_signature_valid
    assert [name.value for name in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [
        "phone-1"
    ]
    recorded = load_folder(
        tmp_path / "recordings", 4, 2
    )  # the same files and windows as the recorder's
    cut = np.fromfile(tmp_path / "windows.f32", "<f4").reshape(recorded.train_x.shape)
    np.testing.assert_array_equal(recorded.train_x, cut)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("module", ["ktx", "recording"])
def test_the_small_modules_run_on_a_jvm(module: str) -> None:
    assert "0 tests failed" in run_build("test", module)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_acts_of_an_app_with_two_fleets_lose_nothing_and_mix_nothing_up(
    tmp_path: Path,
) -> None:
    write_executor_cases(tmp_path / "executor")
    environment = {"SHOAL_KOTLIN_TESTS": str(tmp_path), "SHOAL_KOTLIN_HOSTILE": str(STRESS_ACTS)}
    printed = run_build(
        "test", "android", "--select-class=io.shoal.android.StressTest", environment=environment
    )
    assert "0 tests failed" in printed
    assert f"{STRESS_ACTS} acts of the app" in printed


@pytest.mark.slow
def test_calls_are_those_of_api_36() -> None:
    printed = run_build("stubs")
    found = re.fullmatch(r"(\d+) members of Android's classes are as in API 36\n", printed)
    assert found
    assert int(found[1]) > 60


@pytest.mark.full
@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("int startId)", "long startId)", "android.app.Service.onStartCommand"),
        (
            "android.os.IBinder onBind(",
            "android.content.Intent onBind(",
            "android.app.Service.onBind",
        ),
    ],
)
def test_a_stub_of_another_type_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, right: str, wrong: str, named: str
) -> None:
    monkeypatch.syspath_prepend(str(BRIDGE))
    layer, check, compiled = (
        importlib.import_module(f"steps.{name}") for name in ("layer", "stub_check", "compiled")
    )
    source = (BRIDGE / "android/stubs/android/app/Service.java").read_text()
    assert right in source
    (tmp_path / "Service.java").write_text(source.replace(right, wrong))
    with compiled.alone():
        jar, api = layer.stub_jars()[0], layer.android_stubs()
    subprocess.run(
        [layer.java("javac"), "-d", tmp_path / "made", "-cp", jar, tmp_path / "Service.java"],
        check=True,
        capture_output=True,
    )
    with zipfile.ZipFile(tmp_path / "wrong.jar", "w") as archive:
        archive.write(tmp_path / "made/android/app/Service.class", "android/app/Service.class")
    _, told = check.check(tmp_path / "wrong.jar", api, layer.java("javap"))
    assert [line.partition(":")[0] for line in told] == [named]


@pytest.mark.full
def test_native_libraries_are_laid_out_for_pages_of_16_kb() -> None:
    assert re.match(
        r"\d+ native libraries are laid out for pages of 16384 bytes: .*arm64-v8a/libexecutorch.so",
        run_build("pages"),
    )


def test_a_library_for_smaller_pages_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BRIDGE))
    pages = importlib.import_module("steps.pages")
    for align in (4096, 65536):
        header = (
            b"\x7fELF\x02\x01"
            + bytes(0x1A)
            + struct.pack("<Q", 64)
            + bytes(14)
            + struct.pack("<HH", 56, 2)
            + bytes(6)
        )
        segments = struct.pack("<II6Q", 1, 5, 0, 0, 0, 0, 0, align) + struct.pack(
            "<II6Q", 6, 4, 0, 0, 0, 0, 0, 8
        )
        assert pages.alignment(header + segments, "lib.so") == align
    (tmp_path / "lib.so").write_bytes(
        header + segments.replace(struct.pack("<Q", 65536), struct.pack("<Q", 4096))
    )
    monkeypatch.setattr(pages, "executorch_libraries", lambda: tmp_path)
    with pytest.raises(SystemExit, match=r"smaller than 16384 bytes: lib\.so \(4096 bytes\)"):
        pages.pages()
    (tmp_path / "lib.so").write_bytes(b"no library")
    with pytest.raises(SystemExit, match="expected a 64-bit little-endian ELF file"):
        pages.pages()


def test_every_artefact_is_published_with_sources_licence_and_developers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BRIDGE))
    api = importlib.import_module("steps.api")
    common = (BRIDGE / "build.gradle.kts").read_text()
    licence = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    for words in (
        f'name = "{licence}"',
        "developers {",
        "scm {",
        "description =",
        "withSourcesJar()",
        "withJavadocJar()",
        "sign(publishing.publications)",
    ):
        assert words in common
    named = dict(re.findall(r'^    "(\w+)" to "(\S+)",$', common, re.MULTILINE))
    assert {name: modules[-1] for name, modules in api.ARTEFACTS.items()} == {
        name: module for module, name in named.items()
    }
    for module in api.PUBLIC_MODULES:
        assert "`maven-publish`" in (BRIDGE / module / "build.gradle.kts").read_text(), module
        assert f'":{module}"' in (BRIDGE / "settings.gradle.kts").read_text()
    core = (BRIDGE / "core/build.gradle.kts").read_text()
    assert all(
        words in core for words in ("withSourcesJar()", "withJavadocJar()")
    )  # no Android library: it has them from Java's plugin


def test_gradle_compiles_as_this_build_does_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BRIDGE))
    modules, resources, api = (
        importlib.import_module(f"steps.{name}") for name in ("modules", "resources", "api")
    )
    common, core = ((BRIDGE / place / "build.gradle.kts").read_text() for place in (".", "core"))
    options = {option for option in modules.MODULES["core"].options if option.startswith("-X")}
    assert options - {*modules.MODULES["android"].options} == {modules.UNCHECKED}
    assert {*re.findall(r'"(-X[^"]+)"', common), *re.findall(r'"(-X[^"]+)"', core)} == options
    assert set(re.findall(r"(?:language|api)Version = KotlinVersion.KOTLIN_(\d_\d)", common)) == {
        modules.OLDEST_KOTLIN[1].replace(".", "_")
    }
    assert f'optIn.add("{modules.OPT_IN.partition("=")[2]}")' in common
    assert 'if ("UnitTest" in name) friendPaths.from(libraries)' in common, (
        "tests are compiled as friends of what their module needs, here too"
    )
    assert [int(level) for level in re.findall(r"(?:minSdk|compileSdk) = (\d+)", common)] == [
        resources.TARGET_SDK,
        resources.MIN_SDK,
    ]
    for module in api.PUBLIC_MODULES:
        own = (BRIDGE / module / "build.gradle.kts").read_text()
        said_again = [
            words
            for words in (
                "languageVersion",
                "optIn",
                "publications",
                "singleVariant",
                "Sdk =",
                "useJUnitPlatform",
            )
            if words in own
        ]
        assert said_again == [], module


@pytest.mark.full
def test_manifest_and_resources_link() -> None:
    trees = re.split(r"(?=E: manifest)", run_build("link"))
    linked = {
        match[1]: tree
        for tree in trees
        if (match := re.search(r'package="io\.shoal\.(\w+)"', tree))
    }
    assert set(linked) == {"android", "foreground", "recording", "sample"}
    for words in ("minSdkVersion(0x0101020c)=26", "android.permission.INTERNET"):
        assert words in linked["android"]
    assert "FOREGROUND_SERVICE" not in linked["android"], (
        "an app without the artefacts owes Play no word on foreground services"
    )
    for words in ("FOREGROUND_SERVICE_DATA_SYNC", "foregroundServiceType(0x01010599)=0x00000001"):
        assert words in linked["foreground"]
    assert (
        'android:foregroundServiceType="health"'
        in (BRIDGE / "recording/src/main/AndroidManifest.xml").read_text()
    )


def test_every_text_of_the_sample_is_in_every_language_and_none_stands_in_the_code() -> None:
    res = BRIDGE / "sample/src/main/res"
    told = {
        path.parent.name: dict(
            re.findall(r'<string name="(\w+)">([^<]+)</string>', path.read_text())
        )
        for path in res.glob("values*/strings.xml")
    }
    assert len(told) > 1
    first = told["values"]
    for texts in told.values():
        assert texts.keys() == first.keys()
        for name, text in texts.items():
            assert sorted(re.findall(r"%\d\$\w", text)) == sorted(
                re.findall(r"%\d\$\w", first[name])
            ), name
    layout = (res / "layout/main.xml").read_text()
    shown = re.findall(r'android:(?:text|contentDescription)="([^"]*)"', layout)
    assert all(text.removeprefix("@string/") in first for text in shown)
    code = "".join(path.read_text() for path in (BRIDGE / "sample/src/main").rglob("*.kt"))
    used = (
        {text.removeprefix("@string/") for text in shown}
        | set(re.findall(r"R\.string\.(\w+)", code))
        | {"app_name"}
    )
    assert used == first.keys()


def test_what_a_screen_reader_needs_is_in_the_sample() -> None:
    layout = ElementTree.parse(BRIDGE / "sample/src/main/res/layout/main.xml").getroot()
    android = "{http://schemas.android.com/apk/res/android}"
    buttons, texts = layout.findall(".//Button"), layout.findall(".//TextView")
    assert buttons
    assert all(button.get(f"{android}minHeight") == "48dp" for button in buttons)
    assert sum(text.get(f"{android}accessibilityHeading") == "true" for text in texts) == 4
    changing = [text.get(f"{android}id") for text in texts if text.get(f"{android}id")]
    alive = [
        text.get(f"{android}id")
        for text in texts
        if text.get(f"{android}accessibilityLiveRegion") == "polite"
    ]
    assert changing == alive, "a text that changes by itself is read aloud"
    assert all(bar.get(f"{android}contentDescription") for bar in layout.findall(".//ProgressBar"))


def test_the_quick_start_is_short_and_begins_with_the_call_that_every_start_needs() -> None:
    text = (BRIDGE / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    first, code = text.split("\n\n")[1], re.search(r"```kotlin\n(.*?)```", text, re.DOTALL)
    assert first.startswith("Call `Shoal.fleet` in `Application.onCreate`")
    assert code
    assert len([line for line in code[1].splitlines() if line.strip()]) <= 20


def test_the_page_of_evidence_names_the_tests_and_they_exist() -> None:
    tests = [
        set(re.findall(r"`(\w+/src/test/kotlin/\S+)`", (ROOT / "docs" / page).read_text()))
        for page in ("android.md", "android-evidence.md")
    ]
    assert tests[0] == set(), "a reader of Android's behaviour needs no test"
    assert tests[1]
    assert [path for path in tests[1] if not (BRIDGE / path).is_file()] == []


def test_every_exception_of_the_library_has_a_name_that_says_so() -> None:
    names = {
        name
        for path in BRIDGE.glob("*/src/**/*.kt")
        for name in re.findall(r"class (\w+)(?:\([^)]*\))? : \w*Exception\(", path.read_text())
    }
    assert len(names) > 10
    assert {name for name in names if not name.endswith("Exception")} == set()


def test_the_page_of_the_store_has_what_the_sample_gets_from_each_artefact() -> None:
    needs = re.findall(
        r'implementation\(project\(":(\w+)"\)\)', (BRIDGE / "sample/build.gradle.kts").read_text()
    )
    name = "{http://schemas.android.com/apk/res/android}name"
    entries = {}
    for module in needs:
        root = ElementTree.parse(BRIDGE / module / "src/main/AndroidManifest.xml").getroot()
        parts = [*root.iter("uses-permission"), *root.iter("service"), *root.iter("receiver")]
        artefact = "shoal-android" if module == "android" else f"shoal-android-{module}"
        entries[artefact] = {part.attrib[name].rpartition(".")[2] for part in parts}
    page = (ROOT / "docs/android.md").read_text().split("merged manifest", 1)[1]
    rows = re.findall(r"^\| (.+) \| `(shoal-android\S*)` \|$", page, re.MULTILINE)
    assert {artefact: set(re.findall(r"`(\w+)`", row)) for row, artefact in rows} == entries


def test_the_recipe_for_emulators_names_what_there_is() -> None:
    recipe = yaml.safe_load((BRIDGE / "ci/android.yml").read_text())
    assert recipe["jobs"]["emulators"]["strategy"]["matrix"]["api"] == [26, 31, 34, 36]
    drive = BRIDGE / "ci/drive"
    subprocess.run(["bash", "-n", str(drive)], check=True)
    buttons = re.findall(r'^tap "([^"]+)"', drive.read_text(), re.MULTILINE)
    assert buttons
    words = (BRIDGE / "sample/src/main/res/values/strings.xml").read_text()
    assert [button for button in buttons if f">{button}<" not in words] == []


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_archives_are_what_gradle_publishes(monkeypatch: pytest.MonkeyPatch) -> None:
    run_build("aar")
    monkeypatch.syspath_prepend(str(BRIDGE))
    layer, api = (importlib.import_module(f"steps.{name}") for name in ("layer", "api"))
    for name in api.PUBLIC_MODULES:
        gradle, main = (BRIDGE / name / "build.gradle.kts").read_text(), BRIDGE / name / "src/main"
        archive, classes = layer.ARCHIVES / api.PUBLISHED.get(name, name), api.MODULES[name].jar
        assert "isMinifyEnabled" not in gradle
        if "libs.plugins.android.library" not in gradle:
            assert archive.with_suffix(".jar").read_bytes() == classes.read_bytes()
            continue
        with zipfile.ZipFile(archive.with_suffix(".aar")) as opened:
            contents = {entry: opened.read(entry) for entry in opened.namelist()}
        manifest, _ = contents.pop("AndroidManifest.xml").decode(), contents.pop("R.txt")
        namespace = re.search(r'namespace = "(.*)"', gradle)
        assert namespace
        assert f'package="{namespace[1]}"' in manifest
        assert ("health" in manifest) == (name == "recording"), "no part of it is left out"
        files = {"classes.jar": classes} | {
            path.relative_to(main).as_posix(): path for path in (main / "res").rglob("*.xml")
        }
        if rules := re.search(r'consumerProguardFiles\("(.*)"\)', gradle):
            files["proguard.txt"] = BRIDGE / name / rules[1]
        assert contents == {entry: path.read_bytes() for entry, path in files.items()}


def test_an_app_is_compiled_against_what_it_gets_from_gradle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BRIDGE))
    layer = importlib.import_module("steps.layer")

    def needs(module: str, kind: str) -> set[str]:
        gradle = (BRIDGE / module / "build.gradle.kts").read_text()
        return set(re.findall(rf'^    {kind}\(project\(":(\w+)"\)\)', gradle, re.MULTILINE))

    seen = needs("sample", "implementation")
    while added := {above for name in seen for above in needs(name, "api")} - seen:
        seen |= added
    assert set(layer.SEEN_BY_AN_APP) == seen


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
def test_what_is_found_by_name_survives_the_shrinking_of_an_app() -> None:
    assert re.match(r"D8: \d+ bytes .* R8: \d+ bytes", run_build("dex"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.1.21", "2.2.21", "2.4.20"])
def test_an_app_compiles_against_the_archives_with_this_compiler(version: str) -> None:
    assert run_build("app", version) == f"an app compiles with Kotlin {version}\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.1.21", "2.4.20"])
def test_a_setting_of_the_fleet_is_refused_among_the_rules_of_its_policy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], version: str
) -> None:
    run_build("aar")
    monkeypatch.syspath_prepend(str(BRIDGE))
    modules = importlib.import_module("steps.modules")
    jars = [modules.MODULES[name].jar for name in ("core", "android")]
    source, classpath = tmp_path / "App.kt", [*jars, *modules.stub_jars()]
    for rule, fits in (("minWindows(1)", True), ('trust("x")', False)):
        source.write_text(
            f'fun f(c: android.content.Context) = io.shoal.android.Shoal.fleet(c, "a") {{ policy '
            f"{{ {rule} }} }}"
        )
        with nullcontext() if fits else pytest.raises(SystemExit, match="does not compile"):
            modules.compile_kotlin(
                [source], classpath, tmp_path / f"app-{fits}.jar", modules.JAVA_8, version
            )
    assert (
        "'fun trust(pem: String): FleetBuilder' cannot be called in this context"
        in capfd.readouterr().err
    )


@pytest.mark.full
def test_public_declarations_are_those_that_the_repository_says_and_few() -> None:
    kept = {path: path.read_text() for path in (BRIDGE / "api").glob("*.api")}
    try:
        printed = run_build("api")
    finally:
        for path, text in kept.items():
            path.write_text(text)
    said, _, counts = printed.partition(":")
    assert said == "the public declarations are those of api/", (
        "see git diff; keep what build api wrote if it is meant"
    )
    counted = dict(re.findall(r"(shoal-android\S*) (\d+)", counts))
    assert int(counted["shoal-android"]) <= MOST_DECLARATIONS
    assert (
        dict(
            re.findall(
                r"^\| `(shoal-android\S*)` \| (\d+) \|",
                (ROOT / "docs/android-evidence.md").read_text(),
                re.MULTILINE,
            )
        )
        == counted
    )
    aliases = [
        line
        for module in (
            "core",
            "executorch",
            "android",
            "foreground",
            "recording",
            "ktx",
        )  # an alias is in no class file
        for path in (BRIDGE / module / "src/main").rglob("*.kt")
        for line in re.findall(r"(.*)\n(?=public typealias)", path.read_text())
    ]
    assert set(aliases) == {"@InternalShoalApi"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_mark_hides_a_declaration_and_what_belongs_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_build("compile", "core")
    monkeypatch.syspath_prepend(str(BRIDGE))
    modules, api = (importlib.import_module(f"steps.{name}") for name in ("modules", "api"))
    (tmp_path / "Marked.kt").write_text(MARKED)
    options = (
        "-opt-in=io.shoal.core.InternalShoalApi",
        *modules.public_declarations(tmp_path / "public.jar"),
    )
    modules.compile_kotlin(
        [tmp_path / "Marked.kt"], [modules.MODULES["core"].jar], tmp_path / "marked.jar", options
    )
    marked = api.Module("marked")
    monkeypatch.setattr(api.Module, "public_jar", tmp_path / "public.jar")
    found = {
        declared.name: [(m.name, m.descriptor) for m in api._members(declared)]
        for declared in api._public_classes(marked)
    }
    assert found == {
        "MarkedKt": [("one", "(I)I"), ("one$default", "(IILjava/lang/Object;)I")],
        "Kind": [("<init>", "()V")],
        "Kind$Empty": [],
        "Shown": [("<init>", "()V"), ("getHere", "()I")],
        "Tag": [],
    }


def test_versions_are_the_same_everywhere() -> None:
    catalog = tomllib.loads((BRIDGE / "gradle" / "libs.versions.toml").read_text())["versions"]
    toolchain = (BRIDGE / "steps" / "toolchain.py").read_text()
    assert f'KOTLIN = "{catalog["kotlin"]}"' in toolchain
    assert f'OLDER_KOTLINS = ("{catalog["kotlin-oldest"]}", ' in toolchain
    loader = (
        BRIDGE / "executorch/src/main/kotlin/io/shoal/executorch/ExecutorchLoader.kt"
    ).read_text()
    assert f'VERSION: String = "{catalog["executorch"]}"' in loader
    pinned = re.search(r"^executorch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert pinned[1] == catalog["executorch"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"shoal.version={project}" in (BRIDGE / "gradle.properties").read_text()


@pytest.mark.full
def test_flows_are_compiled_against_the_coroutines_that_they_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_build("compile", "ktx")
    monkeypatch.syspath_prepend(str(BRIDGE))
    catalog = tomllib.loads((BRIDGE / "gradle" / "libs.versions.toml").read_text())["versions"]
    with zipfile.ZipFile(importlib.import_module("steps.modules").coroutines()) as jar:
        assert (
            jar.read("META-INF/kotlinx_coroutines_core.version").decode() == catalog["coroutines"]
        )


def test_bouncycastle_is_the_published_version() -> None:
    jar = Path("/usr/share/java/bcprov.jar")
    if not jar.exists():
        pytest.skip("apt-get install libbcprov-java would run this")
    catalog = tomllib.loads((BRIDGE / "gradle" / "libs.versions.toml").read_text())["versions"]
    with zipfile.ZipFile(jar) as archive:
        manifest = archive.read("META-INF/MANIFEST.MF").decode()
    assert f"Implementation-Version: {catalog['bouncycastle']}.0" in manifest


def test_the_wrapper_is_that_of_gradle_9_3_1() -> None:
    """The jar has the bytes that several projects of that version of Gradle publish."""
    folder = BRIDGE / "gradle" / "wrapper"
    assert "/gradle-9.3.1-bin.zip" in (folder / "gradle-wrapper.properties").read_text()
    found = hashlib.sha256((folder / "gradle-wrapper.jar").read_bytes()).hexdigest()
    assert found == "b3a875ddc1f044746e1b1a55f645584505f4a10438c1afea9f15e92a7c42ec13"
    assert os.access(BRIDGE / "gradlew", os.X_OK)


def test_nothing_beyond_kotlin_executorch_workmanager_and_bouncycastle_is_needed() -> None:
    allowed = {
        "libs.executorch",
        "libs.work.runtime",
        "libs.bouncycastle",
        'project(":core")',
        'project(":executorch")',
    }
    for module in (
        "core",
        "executorch",
        "android",
    ):  # `ktx` needs coroutines: that is why it is apart
        text = (BRIDGE / module / "build.gradle.kts").read_text()
        needed = set(re.findall(r"^\s+(?:api|implementation)\((.*)\)$", text, re.MULTILINE))
        assert needed <= allowed, module
