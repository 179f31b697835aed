"""Commands of docs/tokens.md, typed to a real service; a real client uses the tokens."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.operator import PAGE, Operator, typed

READ, ORDER = (line.strip() for line in PAGE.splitlines() if line.startswith("    curl "))


def asked(operator: Operator, command: str, token: str) -> tuple[int, dict[str, object]]:
    """The status and the answer of the page's curl with this token."""
    words = shlex.split(command.replace("8080", str(operator.port)).replace("TOKEN", token))
    done = subprocess.run(
        [*words, "--silent", "--write-out", "\n%{http_code}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body)


@pytest.mark.full
def test_tokens_are_made_used_and_revoked_while_the_service_runs(operator: Operator) -> None:
    operator.serve()
    assert operator.get("/run")[0] == 200
    viewer, jane = (
        operator.run(typed(f"shoal token new runs/served --name {name}")).stdout.strip()
        for name in ("grafana", "jane")
    )
    assert (operator.get("/run")[0], operator.get("/health")[0]) == (401, 200)
    assert (
        asked(operator, READ, viewer)[0],
        asked(operator, READ, "wrong")[0],
        asked(operator, ORDER, viewer)[0],
    ) == (200, 401, 403)
    status, said = asked(operator, ORDER, jane)
    assert (status, said["state"]) == (200, "done")
    assert asked(operator, READ, jane)[1]["paused"] == "the operator has paused it"
    listed = operator.run(typed("shoal token list")).stdout
    assert [line.split()[:2] for line in listed.splitlines()] == [
        ["grafana", "viewer"],
        ["jane", "operator"],
    ]
    assert viewer not in listed + operator.log()
    assert operator.run(typed("shoal token revoke")).stdout == "token grafana: revoked\n"
    assert (asked(operator, READ, viewer)[0], asked(operator, READ, jane)[0]) == (401, 200)
    assert (
        "No token 'grafana'. Known tokens: jane."
        in operator.run(typed("shoal token revoke")).stderr
    )
    audited = [
        json.loads(line)
        for line in (operator.folder / "runs" / "served" / "audit.log").read_text().splitlines()
    ]
    assert ("jane", "done") in [(line["by"], line["outcome"]) for line in audited]
    operator.stop()
    checked = operator.run(typed("shoal doctor"))
    assert "http-tokens" not in checked.stdout, "the doctor knows the file"


@pytest.mark.parametrize("expires", ["soon", "0d", "12"])
def test_a_time_that_is_none_is_refused(operator: Operator, tmp_path: Path, expires: str) -> None:
    done = operator.run(f"shoal token new {tmp_path} --name x --role viewer --expires {expires}")
    assert (done.returncode, done.stderr.startswith("error: "), done.stdout) == (2, True, "")
