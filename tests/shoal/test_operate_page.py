"""Commands of the guides for operators, typed to a real service and a real broker."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing

import pytest

from aggregator.storage.enrolment_store import DeviceRow, open_enrolments
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker, free_port
from tests.aggregator.releasing import service_with_releases
from tests.support.known import known
from tests.support.operator import COMMANDS, PAGE, Operator, typed
from tests.support.pages import ROOT
from tests.support.waiting import wait_until
from wire.errors import OtherAggregator


@pytest.mark.full
def test_a_service_is_started_looked_at_resumed_checked_backed_up_and_restored(
    operator: Operator, embedded_broker: EmbeddedBroker
) -> None:
    operator.serve()
    assert operator.get("/health")[1]["status"] == "ok"
    status, ready = operator.get("/ready")
    assert (status, ready["ready"]) == (200, True)
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.port}", timeout=5) as dashboard:
        assert "No device has connected yet" in dashboard.read().decode()
    assert all(f"`{check}`" in PAGE for check in ready if check not in ("ready", "phase"))
    epochs = [operator.get("/run")[1]["epoch"]]
    assert "shoal campaign resume runs/served" in COMMANDS
    assert operator.run("shoal campaign resume runs/served").stdout == "no campaign was paused\n"
    checked = operator.run(typed("shoal doctor"))
    assert checked.returncode == 0, checked.stdout
    assert operator.run(typed("shoal models rounds")).stdout.endswith("offered now\n")
    assert (
        "No models of round 3. Rounds whose models are stored: "
        in operator.run(typed("shoal campaign rollback")).stderr
    )
    assert "No device 'pi-1'." in operator.run(typed("shoal campaign exclude")).stderr
    assert "shared/" in operator.run(typed("shoal models inspect")).stdout
    assert operator.run(typed("shoal models export")).returncode == 0
    assert (operator.folder / "runs" / "model.onnx").stat().st_size > 1000
    mend = next(command for command in COMMANDS if "--mend" in command)
    assert operator.run(mend).returncode == 2
    embedded_broker.stop()
    wait_until(lambda: operator.get("/ready")[0] == 503)
    assert operator.get("/ready")[1]["broker"] == "no connection"
    assert operator.get("/health")[0] == 200
    embedded_broker.start()
    wait_until(lambda: operator.get("/ready")[0] == 200)
    copied = operator.run(typed("shoal backup"))
    assert copied.returncode == 0, copied.stderr
    assert "a service runs there; stop it" in operator.run(typed("shoal restore")).stderr
    operator.stop()
    assert operator.run(mend).returncode == 0
    for _ in range(2):
        operator.serve()
        epochs.append(operator.get("/run")[1]["epoch"])
        operator.stop()
        restored = operator.run(typed("shoal restore"))
        assert restored.returncode == 0, restored.stderr
    assert epochs == sorted(set(epochs)), (
        "a restored backup takes a greater epoch than the service that was newer"
    )


@pytest.mark.full
def test_campaigns_start_change_and_end_while_the_service_runs(operator: Operator) -> None:
    operator.serve()

    def say(start: str) -> str:
        done = operator.run(typed(start))
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "campaign autumn has started: waiting" in say("shoal campaign start")
    assert [line["name"] for line in operator.get("/campaigns")[1]] == ["run-1", "autumn"]
    assert operator.run(typed("shoal campaign start")).stderr.startswith(
        "error: Campaign name 'autumn' is taken in "
    )
    assert "goes on with rounds 30, lr_schedule cosine:warmup=3, deadline_s 300.0" in say(
        "shoal campaign set"
    )
    assert "hours 22:00-06:00 UTC" in say("shoal campaign set runs/served autumn --days")
    settings = operator.get("/run?campaign=autumn")[1]["settings"]
    assert (settings["rounds"], settings["deadline_s"], settings["name"]) == (30, 300.0, "autumn")
    asked = {name: settings[name] for name in ("days", "patience", "min_delta", "where", "hours")}
    assert asked == {
        "days": 14,
        "patience": 5,
        "min_delta": 0.002,
        "where": "battery >= 50",
        "hours": "22:00-06:00 UTC",
    }
    assert "is paused" in say("shoal campaign pause")
    assert operator.get("/ready")[0] == 200, "the other goes on"
    operator.processes[-1].kill()
    operator.processes[-1].wait()
    operator.serve()
    assert [line["paused"] for line in operator.get("/campaigns")[1]] == [
        "",
        "the operator has paused it",
    ]
    assert say("shoal campaign resume runs/served autumn") == "resumed: autumn\n"
    assert "has ended after 0 rounds" in say("shoal campaign abort")
    listed = say("shoal campaign list").splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [
        ["run-1", "waiting"],
        ["autumn", "finished"],
    ]
    assert "(it was aborted)" in listed[2]
    rows = json.loads(operator.run(typed("shoal campaign list") + " --json").stdout)
    assert [(row["name"], row["phase"], row["ended"]) for row in rows][1] == (
        "autumn",
        "finished",
        "it was aborted",
    )
    noted = [
        json.loads(line)
        for line in (operator.folder / "runs" / "served" / "audit.log").read_text().splitlines()
    ]
    assert [json.loads(line["what"])["type"] for line in noted] == [
        f"campaign-{w}" for w in ("start", "set", "set", "pause", "resume", "abort")
    ]
    refused = operator.run(typed("shoal campaign pause").replace("autumn", "winter"))
    assert (refused.returncode, refused.stderr) == (
        2,
        "error: No campaign 'winter'. Known campaigns: run-1, autumn.\n",
    )
    assert "Traceback" not in operator.log(0) + operator.log()


@pytest.mark.full
def test_releases_are_listed_and_orders_about_them_are_given(
    operator: Operator, fleet: FleetData
) -> None:
    service_with_releases(fleet, operator.folder / "runs" / "served")
    told = {
        command: operator.run(command)
        for command in COMMANDS
        if re.match("shoal models (list|show|release|rollout|rollback)", command)
    }
    assert "canary" in told["shoal models list runs/served"].stdout
    assert "in use      on 0 devices\n" in told["shoal models show runs/served 2"].stdout
    assert "run-1, release 2: running" in told["shoal models rollout runs/served"].stdout
    orders = [
        done
        for command, done in told.items()
        if re.search("release|--pause|--resume|--promote|rollback", command)
    ]
    assert [done.stderr[:22] for done in orders] == ["error: No service runs"] * 6


@pytest.mark.full
def test_a_second_service_ends_and_one_that_takes_over_ends_the_first(
    operator: Operator, mosquitto: str
) -> None:
    operator.broker = mosquitto
    first = operator.serve()
    runs = operator.folder / "runs"
    in_writing = shutil.ignore_patterns("*.new")
    shutil.copytree(runs / "served", runs / "standby", ignore=in_writing)
    second = operator.serve(folder="runs/standby")
    assert second.wait(60) == 3
    assert "another aggregator is at work" in operator.log()
    assert first.poll() is None
    assert "--take-over" in PAGE
    third = operator.serve("--take-over", folder="runs/standby")
    assert first.wait(30) == 3
    assert "Another aggregator has taken over the fleet" in operator.log(0)
    assert third.poll() is None


@pytest.mark.full
def test_the_other_commands_run_as_written(operator: Operator) -> None:
    (operator.folder / "runs" / "served").mkdir()
    service, public = (command for command in COMMANDS if command.startswith("shoal vouch"))
    for command in (service, public):
        done = operator.run(command)
        assert done.returncode == 0, done.stderr
        shutil.copy(operator.folder / "runs" / "served" / "service.pub", operator.folder)
    assert operator.run(typed("shoal acl")).stdout.startswith("# ")


def test_enrolment_is_set_up_and_devices_are_approved_as_written(operator: Operator) -> None:
    """tests/end_to_end/test_enrolment.py does the rest, with a broker and devices."""

    def run(start: str) -> str:
        done = operator.run(typed(start))
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "start the broker: mosquitto -c runs/fleet/broker/mosquitto.conf" in run(
        "shoal init fleet.toml --tls"
    )
    assert (operator.folder / "runs" / "fleet" / "broker" / "mosquitto.conf").exists()
    assert len(run("shoal enrol token").strip()) == 75
    with (
        closing(open_enrolments(operator.folder / "runs" / "fleet")) as store,
        store.transaction() as within,
    ):
        for name in ("pi-1", "pi-2"):
            within.put(DeviceRow(name, "waiting", "00"))
    assert "pi-1  waiting" in run("shoal enrol list")
    assert "approved" in run("shoal enrol approve")
    assert "rejected" in run("shoal enrol reject")
    assert "nothing is due" in run("shoal enrol renew")
    assert "approved pi-1" in run("shoal enrol audit")
    assert (
        "exists already, and is not changed"
        in operator.run(typed("shoal init fleet.toml --tls")).stderr
    )


@pytest.mark.full
def test_a_service_is_started_from_the_file_that_init_writes(operator: Operator) -> None:
    assert operator.run(typed("shoal init")).returncode == 0
    operator.port = free_port()
    filled = {
        '# broker = "mqtt://localhost"': f'broker = "{operator.broker}"',
        "# port = 8080": f"port = {operator.port}",
    }
    path = operator.folder / "serve.toml"
    text = path.read_text()
    assert all(line in text for line in filled)
    for line, value in filled.items():
        text = text.replace(line, value)
    path.write_text(text)
    command = next(command for command in COMMANDS if "--config" in command)
    operator.processes.append(
        subprocess.Popen(
            [sys.executable, "-m", *shlex.split(command)],
            cwd=operator.folder,
            start_new_session=True,
        )
    )
    wait_until(lambda: operator.get("/ready")[0] == 200, 100)


def test_the_units_options_exist() -> None:
    for unit, module in (("shoal-serve.service", "shoal"),):
        text = (ROOT / "deploy" / "systemd" / unit).read_text()
        assert f"RestartPreventExitStatus={OtherAggregator.exit_status}" in text
        line = known(re.search(r"^ExecStart=\S+/(.+)$", text, re.MULTILINE))[1]
        told = subprocess.run(
            [sys.executable, "-m", module, "serve", "--help"], capture_output=True, text=True
        ).stdout
        assert [word for word in line.split() if word.startswith("--") and word not in told] == []
