"""The commands of whoever runs a service: vouch, acl, resume, and what serve says when it cannot
start."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from aggregator.core.steps import Gate
from aggregator.leadership.identity import service_key, service_signer
from aggregator.service_settings import EnrolmentSettings, ServeSettings
from host.settings import settings_of
from shoal.cli import application
from wire.errors import ConfigError, Untrusted
from wire.identity.keys import PrivateKey, new_key, private_pem, public_pem
from wire.identity.signed import Verifier
from wire.topics import mosquitto_acl

ROOT = Path(__file__).parents[2]


def shoal(name: str, *arguments: object) -> int:
    """Run a command in this process; returns its status."""
    try:
        application(name)([name, *map(str, arguments)], standalone_mode=False)
    except typer.Exit as end:
        return end.exit_code
    return 0


@pytest.fixture
def root(tmp_path: Path) -> PrivateKey:
    key = new_key()
    (tmp_path / "signing.key").write_bytes(private_pem(key))
    return key


class TestVouch:
    def test_for_a_folder(
        self, tmp_path: Path, root: PrivateKey, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "served"
        folder.mkdir()
        shoal(
            "vouch",
            "--service",
            folder,
            "--fleet",
            "f",
            "--key",
            tmp_path / "signing.key",
            "--days",
            "10",
        )
        assert "may speak for the fleet f until" in capsys.readouterr().out
        service_signer(folder, "f", (root.public_key(),), None, time.time())
        with pytest.raises(Untrusted, match="it ended "):
            Verifier("f", (root.public_key(),)).voucher(
                (folder / "service.voucher").read_bytes(), time.time() + 10.1 * 86_400
            )

    def test_on_the_machine_of_the_root_key(self, tmp_path: Path, root: PrivateKey) -> None:
        service, away = tmp_path / "served", tmp_path / "away"
        service.mkdir()
        away.mkdir()
        service_key(service)
        (away / "service.pub").write_bytes((service / "service.pub").read_bytes())
        shoal(
            "vouch",
            "--public",
            away / "service.pub",
            "--fleet",
            "f",
            "--key",
            tmp_path / "signing.key",
        )
        (service / "service.voucher").write_bytes((away / "service.voucher").read_bytes())
        service_signer(service, "f", (root.public_key(),), None, time.time())

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (
                ["--service", "none", "--fleet", "f"],
                "No folder none (--service). `shoal serve --folder none` makes it.",
            ),
            (["--fleet", "f"], "needs either --service FOLDER or --public FILE"),
            (
                ["--service", ".", "--public", "x", "--fleet", "f"],
                "needs either --service FOLDER or --public FILE",
            ),
            (["--public", "none", "--fleet", "f"], "--public none: No such file"),
            (
                ["--public", "signing.key", "--fleet", "f"],
                "--public signing.key: trusted key: not a public key",
            ),
            (["--public", "two.pem", "--fleet", "f"], "--public two.pem: expected one key, got 2"),
            (["--service", ".", "--fleet", "a/b"], "fleet name 'a/b'"),
        ],
    )
    def test_wrong_input_is_one_clear_error(
        self,
        tmp_path: Path,
        root: PrivateKey,
        monkeypatch: pytest.MonkeyPatch,
        arguments: list[str],
        error: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "two.pem").write_bytes(public_pem(root) * 2)
        with pytest.raises(ConfigError) as raised:
            shoal("vouch", *arguments, "--key", "signing.key")
        assert error in str(raised.value)

    @pytest.mark.parametrize("days", ["1e9", "36526", "0", "-1", "inf", "nan"])
    def test_days_are_bounded_and_nothing_is_written_before(
        self, tmp_path: Path, root: PrivateKey, days: str
    ) -> None:
        folder = tmp_path / "served"
        folder.mkdir()
        with pytest.raises(
            ConfigError,
            match="--days must be above 0 and at most 36525, got "
            + re.escape(format(float(days), "g")),
        ):
            shoal(
                "vouch",
                "--service",
                folder,
                "--fleet",
                "f",
                "--key",
                tmp_path / "signing.key",
                "--days",
                days,
            )
        assert [*folder.iterdir()] == []

    @pytest.mark.parametrize("name", ["none", "trust.pem"])
    def test_a_wrong_root_key_is_named(self, tmp_path: Path, root: PrivateKey, name: str) -> None:
        (tmp_path / "trust.pem").write_bytes(public_pem(root))
        with pytest.raises(ConfigError, match=f"--key .*{name}"):
            shoal("vouch", "--service", tmp_path, "--fleet", "f", "--key", tmp_path / name)


def test_acl_prints_the_rules_and_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from shoal.cli import main\ntry: main()\nfinally: print('torch' in "
        "sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "acl", "--fleet", "watches"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, mosquitto_acl("watches"), "False\n")


FLOATS = {
    setting.parameter: setting
    for struct, prefix in ((ServeSettings, ""), (Gate, "rollout_"), (EnrolmentSettings, "enrol_"))
    for setting in settings_of(struct, prefix).values()
    if setting.type is float
}


@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("name", FLOATS)
def test_every_number_that_serve_takes_is_finite(tmp_path: Path, name: str, value: str) -> None:
    assert {"deadline", "grace", "max_norm", "norm_cap", "weight_cap", "max_drop"} <= {*FLOATS}
    option = f"--{name.replace('_', '-')}"
    with pytest.raises(ConfigError) as raised:
        shoal("serve", "--folder", tmp_path / "f", "--bundle", tmp_path, option, value)
    setting = FLOATS[name]
    told = f"{setting.prefix}{setting.name} must be {setting.allowed}, got {value} ({option})"
    assert str(raised.value) == told
    assert not (tmp_path / "f").exists()
