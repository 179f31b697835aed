"""Every block of code on every page is covered by a test that is named here; commands in the text
exist; and links to other sites."""

import re
import shlex
import tomllib
from functools import cache
from typing import Any

import pytest

from host.settings import settings_of
from shoal.cli import COMMANDS, application
from tests.support.pages import ADDING, FENCE, ROOT, Block, blocks, pages

EVERY = {
    ("README.md", "python"): "tests/shoal/test_python_page.py: test_the_program_of_the_readme_runs",
    (
        "docs/python.md",
        "python",
    ): "tests/shoal/test_python_page.py: test_the_programs_of_the_page_run_in_order",
    **{
        (f"docs/{name}.md", "python"): "tests/shoal/test_extend_page.py: "
        "test_the_programs_of_the_pages_about_parts_pass_the_checks_of_the_repository"
        for name in ADDING
    },
    **{
        (f"docs/{name}.md", "python"): "tests/shoal/test_python_page.py: "
        "test_the_programs_of_a_guide_run_by_themselves"
        for name in ("callbacks", "lengths")
    },
    **dict.fromkeys(
        (
            ("android_bridge/README.md", "kotlin"),
            ("android_bridge/README.md", "java"),
            ("docs/android.md", "kotlin"),
        ),
        "tests/android/test_layer.py: test_an_app_compiles_against_the_archives_with_this_compiler",
    ),
    ("docs/own-data.md", "python"): "tests/shoal/test_docs.py: test_simulations_run_as_written",
    **{
        (f"docs/{name}.md", ""): "tests/deploy/test_install_page.py: "
        "test_every_command_is_of_a_program_of_whose_words_a_test_knows"
        for name in ("containers", "alerts", "kubernetes", "ansible", "board-update")
    },
    (
        "docs/tutorial.md",
        "python",
    ): "tests/examples/test_methods.py: test_the_page_shows_what_the_files_hold",
    (
        "docs/alerts.md",
        "yaml",
    ): "tests/deploy/test_monitoring.py: "
    "test_alertmanager_reads_the_configuration_and_the_receiver_of_the_page",
    (
        "docs/alerts.md",
        "json",
    ): "tests/aggregator/test_alert_webhook.py: test_the_message_of_the_page_is_one",
}
"""The test that covers every block of a language on a page."""
ONE = {
    "CONTRIBUTING.md: diff: --- a/aggregator/core/training.py": "tests/shoal/test_blocks.py: "
    "test_the_setting_of_the_page_is_a_setting",
    "docs/extend.md: python: from algorithms.spec import option": "tests/shoal/"
    "test_extend_page.py: test_the_option_of_the_page_is_that_of_the_grouping",
    "docs/data.md: toml: rate = 50                                # samples a second": (
        "tests/edge_client/test_program_layouts.py: test_the_words_of_the_page_are_read"
    ),
    "docs/own-data.md: csv: t,ax,ay,az,label": "tests/shoal/test_docs.py: "
    "test_the_recording_of_the_page_is_read",
    "docs/models.md: python: from torch import nn": "tests/simulation/test_own_model.py: "
    "written_in_the_docs",
    "docs/models.md: python: import torch": "tests/simulation/test_own_model.py: "
    "written_in_the_docs",
    "docs/live.md: toml: [window]": "tests/shoal/test_docs.py: "
    "test_a_recording_as_the_page_of_live_data_has_it",
    'docs/policy.md: toml: verbs = ["train", "evaluate", "protect", "mask"]': "tests/edge_client/"
    "test_policy.py: test_the_policy_of_the_page",
    (
        "docs/power.md: toml: max_seconds = 600             # a longer plan ends, and is declined"
    ): "tests/edge_client/test_policy.py: test_the_policy_that_saves_power",
    "docs/predict.md: python: import json, onnxruntime": "tests/edge_client/test_model.py: "
    "test_the_programs_of_the_page_answer_alike",
    "docs/report.md: python: import numpy as np": "tests/shoal/test_simulated_models.py: "
    "test_the_program_of_the_page_predicts_a_class",
    "docs/predict.md: python: from edge_client import Model": "tests/edge_client/test_model.py: "
    "test_the_programs_of_the_page_answer_alike",
    'docs/tutorial.md: toml: [project.entry-points."shoal.groupings"]': "tests/algorithms/"
    "test_outside.py: test_the_entry_of_the_page",
    (
        "docs/house.md: text: shoal                                  the command line, and what "
        "Python programs import"
    ): "tests/shoal/"
    "test_blocks.py: test_the_drawing_of_imports_has_the_packages_that_the_contracts_have",
}
"""The test that covers one block."""
LINKS = {
    "https://developer.android.com/build/kotlin-support",
    "https://developer.android.com/build/releases/about-agp",
    "https://developer.android.com/build/releases/agp-9-1-0-release-notes",
    "https://developer.android.com/jetpack/androidx/releases/work",
    "https://docs.aws.amazon.com/general/latest/gr/iot-core.html",
    "https://docs.emqx.com/en/cloud/v4/create/restriction.html",
    "https://docs.emqx.com/en/emqx/latest/configuration/mqtt.html",
    "https://docs.hivemq.com/hivemq-edge/mqtt-specific-configuration.html",
    "https://docs.nats.io/nats-server/configuration/mqtt",
    "https://learn.microsoft.com/azure/event-grid/mqtt-retain",
    "https://learn.microsoft.com/azure/event-grid/quotas-limits",
    "https://flower.ai",
    "https://github.com/FedML-AI/FedML",
    "https://github.com/GeoTecINIT/sp-sw-har-dataset",
    "https://github.com/SMILELab-FL/FedLab",
    "https://github.com/TsingZ0/PFLlib",
    "https://github.com/apple/pfl-research",
    "https://github.com/huggingface/safetensors",
    "https://keepachangelog.com/en/1.1.0/",
    "https://nvflare.readthedocs.io",
    "https://semver.org/spec/v2.0.0.html",
    "https://www.sqlite.org/recovery.html",
    "https://www.tensorflow.org/federated",
}
"""Every link to another site. No test opens one: tests have no network. A link that is added is
opened by hand first."""
ABSENT = {"windows"}
"""Commands of which a page says how they would be added."""


def every_block() -> list[Block]:
    return [block for path in pages() for block in blocks(str(path.relative_to(ROOT)))]


def test_every_block_of_every_page_is_covered_by_a_test_that_is_there() -> None:
    found = every_block()
    assert len(found) >= 40
    assert [
        block.name
        for block in found
        if (block.page, block.language) not in EVERY and block.name not in ONE
    ] == []
    assert set(ONE) <= {block.name for block in found}
    assert set(EVERY) <= {(block.page, block.language) for block in found}
    for place in {*EVERY.values(), *ONE.values()}:
        file, _, name = place.partition(": ")
        assert re.search(rf"\bdef {name}\(", (ROOT / file).read_text()), place


def test_the_drawing_of_imports_has_the_packages_that_the_contracts_have() -> None:
    (drawing,) = blocks("docs/house.md")
    drawn = [
        re.split(r"\s{2,}", line.strip(" └─>"))[0].replace("│", "|")
        for line in drawing.text.splitlines()
    ]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    assert drawn in [contract["layers"] for contract in contracts if contract["type"] == "layers"]


def test_the_setting_of_the_page_is_a_setting() -> None:
    """Its line stands in the body of the struct that the page names, and makes the option."""
    from aggregator.core import training

    (block,) = blocks("CONTRIBUTING.md", "diff")
    path, struct, line = (
        re.search(pattern, block.text, re.MULTILINE)
        for pattern in (r"^\+\+\+ b/(.+)$", r"^@@ class (.+):$", r"^\+ +(.+)$")
    )
    assert path is not None
    assert struct is not None
    assert line is not None
    assert f"class {struct[1]}:" in (ROOT / path[1]).read_text()
    made = dict(vars(training))
    exec(f"class Made(RoundSettings[str], frozen=True, kw_only=True):\n    {line[1]}", made)
    new = settings_of(made["Made"]).keys() - settings_of(training.RoundSettings).keys()
    assert new == {"late_s"}
    setting = settings_of(made["Made"])["late_s"]
    assert (setting.flag, setting.about["live"]) == ("--late", True)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"`{name}`" in text for name in (setting.flag, "SHOAL_SERVE_LATE"))
    structs = re.findall(r"`(\w+Settings)`(?:, `(\w+Settings)`)? in `([\w/]+\.py)`", text)
    assert len(structs) == 5
    for first, second, file in structs:
        for name in filter(None, (first, second)):
            assert f"class {name}(" in (ROOT / file).read_text()


@cache
def command(name: str) -> Any:
    """The click command `shoal NAME`."""
    import typer

    return typer.main.get_command(application(name)).commands[name]  # type: ignore[attr-defined]


def mistake(line: str) -> str | None:
    """Return the fault of a command in the text, or None if it exists with its options."""
    program, *words = shlex.split(line)
    if program in ("shoal-edge", "shoal-helper"):
        return mistake_of_parser(program, words)
    if not words or words[0].startswith("-") or words[0] in (*ABSENT, "COMMAND"):
        return None
    if words[0] not in COMMANDS:
        return f"no command {words[0]}"
    found, rest = command(words[0]), words[1:]
    if inner := getattr(found, "commands", None):
        if not rest or rest[0].startswith("-"):
            return None
        if rest[0] not in inner:
            return f"no command {rest[0]} of {words[0]}"
        found = inner[rest[0]]
    options = {
        option
        for parameter in found.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    return next(
        (
            f"no option {word}"
            for word in rest
            if word.startswith("--") and word not in options | {"--help"}
        ),
        None,
    )


def mistake_of_parser(program: str, words: list[str]) -> str | None:
    """Return the fault of a command of `shoal-edge` or `shoal-helper`, or None."""
    from edge_client.options import parser
    from helper.main import parser as helper_parser

    top = helper_parser() if program == "shoal-helper" else parser()
    (commands,) = (action for action in top._actions if action.dest == "command")
    known: dict[str, Any] = dict(commands.choices or {})
    named = words[0] if words and not words[0].startswith("-") else None
    if named is not None and named not in known:
        return f"no command {named}"
    options = {*top._option_string_actions, *(known[named or "run"]._option_string_actions)}
    return next(
        (f"no option {word}" for word in words if word.startswith("--") and word not in options),
        None,
    )


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_the_text_exist_with_their_options(path: Any) -> None:
    text = FENCE.sub("", path.read_text())
    lines = re.findall(r"`((?:shoal|shoal-edge|shoal-helper) [^`>|\n]+)`", text)
    assert [f"{line}: {wrong}" for line in lines if (wrong := mistake(line))] == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert mistake("shoal simulat") == "no command simulat"
    assert mistake("shoal campaign begin") == "no command begin of campaign"
    assert mistake("shoal models list --jsn") == "no option --jsn"
    assert mistake("shoal-edge go") == "no command go"
    assert mistake("shoal-helper go") == "no command go"
    assert mistake("shoal-edge run --sate STATE") == "no option --sate"


def test_links_to_other_sites_are_those_of_the_list() -> None:
    own = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\]|[\w.-]+\.example|\.\.\.)")
    met = {
        link
        for path in pages()
        for link in re.findall(r"(?:\]\(|<)(https?:[^)>]*)", path.read_text())
        if not own.match(link)
    }
    assert met == LINKS
    wrong = [
        link
        for link in LINKS
        if not re.fullmatch(r"https://([a-z0-9-]+\.)+[a-z]{2,}(/[\w./-]*)?", link)
    ]
    assert wrong == []
