"""The Kotlin client: its own tests, on what the Python side wrote for them."""

import json
import re
from pathlib import Path

import pytest

from tests.android.bridge import run_build
from tests.android.kotlin_vectors import write
from tests.android.numpy_vectors import FILE, text
from tests.support.enrolment import EnrolmentBench, enrolment_bench
from wire.identity.enrolment import Token

HOSTILE_PLANS = 50_000
WRITES = 4_000


def enrolment_service(bench: EnrolmentBench) -> dict[str, str]:
    """Return the data of a service for Kotlin's tests of enrolment: its address, and tokens by
    their kind."""
    used = bench.token()
    bench.enrol(used, name="pi-1")
    return {
        "url": bench.url,
        "good": bench.token(),
        "used": used,
        "bound": bench.token(device_id="phone-9"),
        "approve": bench.token(approve=True),
        "clock": bench.token(),
        "elsewhere": str(Token(bytes(16), "00" * 32)),
    }


@pytest.mark.full
@pytest.mark.timeout(900)
def test_kotlin_core(tmp_path: Path) -> None:
    write(tmp_path)
    with enrolment_bench(tmp_path / "enrolment", serves=True) as bench:
        (tmp_path / "enrolment.json").write_text(json.dumps(enrolment_service(bench)))
        printed = run_build("test", "core", environment={"SHOAL_KOTLIN_TESTS": str(tmp_path)})
    assert "0 tests failed" in printed
    skipped = [line for line in printed.splitlines() if "[S]" in line]
    assert all("mosquitto" in line.lower() for line in skipped), skipped


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_build_writes_what_the_tests_compare_with_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SHOAL_KOTLIN_TESTS", raising=False)
    printed = run_build("test", "core", "--select-class=io.shoal.core.wire.BundleTest")
    assert re.search(r"\[ +0 tests aborted +\]", printed)
    assert "0 tests failed" in printed


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_thousand_hostile_plans_neither_end_a_device_nor_get_what_its_policy_forbids(
    tmp_path: Path,
) -> None:
    write(tmp_path)
    environment = {"SHOAL_KOTLIN_TESTS": str(tmp_path), "SHOAL_KOTLIN_HOSTILE": str(HOSTILE_PLANS)}
    printed = run_build(
        "test", "core", "--select-class=io.shoal.core.HostileTest", environment=environment
    )
    assert "0 tests failed" in printed
    assert f"of {HOSTILE_PLANS} hostile plans" in printed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_thousand_writes_of_two_threads_with_kills_at_random_lose_nothing() -> None:
    printed = run_build(
        "test",
        "core",
        "--select-class=io.shoal.core.KilledWritesTest",
        environment={"SHOAL_KOTLIN_HOSTILE": str(WRITES)},
    )
    assert "0 tests failed" in printed
    found = re.search(
        r"^(\d+) writes, (\d+) kills: nothing is lost or torn$", printed, re.MULTILINE
    )
    assert found is not None
    assert (int(found[1]) >= WRITES, int(found[2]) > 20) == (True, True)


def test_numpy_vectors_are_those_of_this_numpy() -> None:
    assert FILE.read_text() == text(), "run python -m tests.android.numpy_vectors"
