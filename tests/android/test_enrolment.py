"""A phone enrols at a real service by a token, and its job speaks to the real broker that the
service names, with TLS both ways."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.android.bridge import run_build
from tests.end_to_end.fleet import Fleet, find_mosquitto
from tests.support.bundles import Exported

pytestmark = pytest.mark.full


@pytest.fixture
def served(tmp_path: Path, exported: Exported) -> Iterator[Fleet]:
    served = Fleet(tmp_path, find_mosquitto())
    served.init(exported.folder)
    served.start_broker()
    served.serve("--rounds", "1")
    yield served
    served.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_phone_enrols_and_its_job_checks_in_at_the_broker_that_the_service_names(
    served: Fleet, exported: Exported, tmp_path: Path
) -> None:
    run_build("compile", "android")  # or a token's time would pass meanwhile
    token = served.run("shoal", "enrol", "token", "runs/served").strip()
    about = {
        "url": served.url,
        "token": token,
        "trust": (exported.folder / "trust.pem").read_text(),
    }
    (tmp_path / "served.json").write_text(json.dumps(about))
    printed = run_build(
        "test",
        "android",
        "--select-class=io.shoal.android.EnrolTest",
        "--include-tag=served",
        environment={"SHOAL_KOTLIN_TESTS": str(tmp_path)},
    )
    assert "1 tests successful" in printed
    assert "phone-7" in served.run("shoal", "devices", "list", "runs/served")
    assert token not in served.log("serve")
