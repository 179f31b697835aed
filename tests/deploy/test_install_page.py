"""Pages about installing services: their files are there, and their commands are those that tests
type."""

import re
import shlex
import tomllib

from helper.main import parser
from tests.deploy.tools import DEPLOY, ROOT
from tests.support.pages import blocks, page

NAMES = ("install", "containers", "alerts", "kubernetes", "ansible", "board-update")
PAGE = "".join(map(page, NAMES))
COMMANDS = [
    line
    for name in NAMES
    for block in blocks(f"docs/{name}.md", "")
    for line in block.text.splitlines()
]


def test_every_command_is_of_a_program_of_whose_words_a_test_knows() -> None:
    """No engine and no cluster is at hand where tests run: files and names in such commands are
    compared with what they stand for."""
    words = [
        [
            word
            for word in shlex.split(line.removeprefix("sudo "))
            if not re.match(r"[A-Z_]+=", word)
        ]
        for line in COMMANDS
    ]
    programs = {given[0] for given in words}
    variables = {name for line in COMMANDS for name in re.findall(r"^([A-Z_]+)=", line)}
    assert variables == {"ALERT_WEBHOOK"}
    assert "${ALERT_WEBHOOK:-}" in (DEPLOY / "compose" / "setup").read_text()
    assert programs == {
        "docker",
        "helm",
        "ansible-playbook",
        "deploy/compose/setup",
        "deploy/board/shoal-board",
        "shoal-board",
    }
    paths = {word for line in COMMANDS for word in shlex.split(line) if word.startswith("deploy/")}
    assert len(paths) >= 5
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    charts = {
        line.split()[3]: set(re.findall(r"--set ([\w.]+)=", line))
        for line in COMMANDS
        if line.startswith("helm")
    }
    assert charts == {
        "deploy/helm/shoal": {"broker", "secrets.tls", "secrets.bundle"},
        "deploy/helm/shoal-helper": {"fleet", "helper", "broker", "config", "tls"},
    }
    for chart, keys in charts.items():
        values = (ROOT / chart / "values.yaml").read_text()
        assert [
            key
            for key in keys
            if not re.search(rf"^ *{key.rpartition('.')[2]}:", values, re.MULTILINE)
        ] == []
    script = (DEPLOY / "board" / "shoal-board").read_text()
    said = {
        word
        for line in COMMANDS
        if "shoal-board" in line
        for word in shlex.split(line)
        if word.startswith("--")
    }
    assert said == {"--enrol", "--device"}
    assert [word for word in said if f"{word})" not in script] == []
    services = set(
        re.findall(r"^  (\w+):$", (DEPLOY / "compose" / "compose.yaml").read_text(), re.MULTILINE)
    )
    named = {
        re.split(r" (?:exec|restart) ", line)[1].split()[0]
        for line in COMMANDS
        if re.search(" (exec|restart) ", line)
    }
    assert named == {"aggregator", "alertmanager"}
    assert named <= services


def test_a_helpers_container_gets_commands_of_its_program() -> None:
    options = [shlex.split(line.partition(" shoal-helper:")[2])[1:] for line in COMMANDS]
    commands = [parser().parse_args(words).command for words in options if words]
    assert commands == ["init", "run"]


def test_every_extra_and_every_alert_is_on_a_page() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    alerts = re.findall(r"- alert: (\w+)", (DEPLOY / "monitoring" / "alerts.yml").read_text())
    assert [name for name in [*extras, *alerts] if f"`{name}`" not in PAGE] == []
