"""Pages of the site that are generated: commands, choices, HTTP, MQTT, metrics, errors, Python."""

import ast
import json
import posixpath
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BASES = (
    "algorithms.groupings.base.Defaults",
    "algorithms.objectives.coordinator.DefaultCoordinator",
    "algorithms.objectives.fedper.FedPer",
    "algorithms.objectives.supervised.Supervised",
    "algorithms.optimizers.base.Optimizer",
    "algorithms.personalisation.choices.ByRecipe",
    "algorithms.privacy.base.DefaultPrivacy",
    "algorithms.tasks.classification.Classification",
)
KINDS = {
    "Objectives": ("objective", "memory", "bias"),
    "Groupings": ("grouping",),
    "Means": ("mean",),
    "Privacy": ("privacy",),
    "Personalisation": ("personalisation",),
    "Optimizers": ("optimizer",),
    "Server optimizers": ("server optimizer",),
    "Tasks": ("task",),
}
"""Titles of the parts of an algorithm, and the kinds of the registry in each."""


def commands() -> str:
    """Every command with its options, as its help has them."""
    import typer

    from shoal.cli import COMMANDS, application

    parts = [
        "# Commands",
        "",
        "Generated from the commands. `shoal COMMAND --help` prints the same. Every option can be "
        "set in the",
        "environment too: `--min-devices` of `shoal serve` as `SHOAL_SERVE_MIN_DEVICES`, "
        "`--max-payload` of `shoal-edge` as",
        "`SHOAL_EDGE_MAX_PAYLOAD`.",
        "",
    ]
    for name, about in COMMANDS.items():
        group = typer.main.get_command(application(name))
        parts += [f"## shoal {name}", "", about.summary + f" Needs `shoal[{about.extra}]`.", ""]
        parts += list(_command(f"shoal {name}", group.commands[name]))
    parts += _settings()
    from edge_client import options
    from helper import main as helper

    texts = _help("shoal-edge", options.parser()) | _help("shoal-helper", helper.parser())
    for title, told in texts.items():
        parts += [f"##{'#' if ' ' in title else ''} {title}", "", "```text", told, "```", ""]
    return "\n".join(parts)


def _settings() -> list[str]:
    """Every setting with its range, unit and whether it may change while a campaign runs."""
    from aggregator.core.steps import Gate
    from aggregator.core.training import AdmissionSettings, RoundSettings, TrainingSettings
    from aggregator.service_settings import EnrolmentSettings, ServeSettings
    from edge_client.settings import DeviceSettings
    from host.settings import settings_of, table
    from simulation.settings import EngineSettings, SimulationSettings

    parts, shown = ["## Settings", ""], set[str]()
    groups: Mapping[str, tuple[Any, str]] = {
        "Training": (TrainingSettings, ""),
        "Rounds": (RoundSettings, ""),
        "Admission": (AdmissionSettings, ""),
        "Service": (ServeSettings, ""),
        "Rollout": (Gate, "rollout_"),
        "Enrolment": (EnrolmentSettings, "enrol_"),
        "Simulation": (SimulationSettings, ""),
        "Engine": (EngineSettings, ""),
        "Device": (DeviceSettings, ""),
    }
    for title, (struct, prefix) in groups.items():
        settings = [
            each
            for each in settings_of(struct, prefix).values()
            if title == "Device" or each.flag not in shown
        ]
        shown |= {each.flag for each in settings if not prefix and title != "Simulation"}
        parts += [f"### {title}", "", *table(settings), ""]
    return parts


def choices() -> str:
    """Return the page of every name that takes options: choices of algorithms, partitions, ..."""
    from aggregator.core.policies import POLICIES
    from algorithms import registry
    from algorithms.models.registry import MODELS
    from algorithms.models.registry import OPTIONS as OF_MODELS
    from algorithms.schedules import SCHEDULES
    from simulation.engine.workers.attacks import ATTACKS
    from simulation.partition import OPTIONS as OF_PARTITIONS
    from simulation.splits import SPLITS
    from simulation.timing.profiles import DISTRIBUTIONS

    parts = ["# Choices and their options", ""]
    parts += ["Generated from the code. An option is written after its name, `fedprox:mu=0.1`:"]
    parts += ["[names](algorithms.md#names). `shoal algorithms --json` prints the choices of"]
    parts += ["algorithms, with options and papers.", ""]
    for title, kinds in KINDS.items():
        parts += [f"## {title}", ""]
        for kind in kinds:
            for name, cls in registry.CHOICES[kind].items():
                paper = _cell(cls.citation) or "No paper."
                if verdict := getattr(cls, "in_sums", ""):
                    paper += f" [Secret mode](secret.md#which-algorithms): {verdict}."
                parts += [f"### {name}", "", paper, "", *_options(registry.options_of(cls))]
    others: Mapping[str, Mapping[str, Any]] = {
        "Partitions": OF_PARTITIONS,
        "Splits": SPLITS,
        "Attacks": ATTACKS,
        "Models": {name: OF_MODELS.get(name, {}) for name in MODELS},
        "Learning rate schedules": SCHEDULES,
        "Profiles of devices": DISTRIBUTIONS,
        "Policies of rounds": POLICIES,
    }
    for title, names in others.items():
        parts += [f"## {title}", ""]
        for name, options in names.items():
            parts += [f"### {name}", "", *_options(options)]
    return "\n".join(parts)


def _options(options: Mapping[str, Any]) -> list[str]:
    """Return options as a table."""
    from algorithms.spec import write

    if not options:
        return ["No options.", ""]
    rows = ["| option | default | allowed | meaning |", "|---|---|---|---|"]
    for key, option in options.items():
        default = "" if option.default in (None, "") else f"`{write(option.default)}`"
        rows.append(f"| `{key}` | {default} | {_allowed(option)} | {_cell(option.about)} |")
    return [*rows, ""]


def _allowed(option: Any) -> str:
    """Return the values of an option in words, from the error about a value that is none."""
    from wire.errors import ConfigError

    try:
        option.read("", "\0", "")
    except ConfigError as error:
        return _cell(str(error).partition("expected ")[2])
    return "a text"


def _command(words: str, command: Any) -> Iterator[str]:
    """A command's options as a table, then those of its commands."""
    rows = [row for parameter in command.params if (row := _row(parameter))]
    if rows:
        yield from ("| option | default | meaning |", "|---|---|---|", *rows, "")
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from (f"### {words} {name}", "", (inner.help or "").replace("\n", " "), "")
        yield from _command(f"{words} {name}", inner)


def _row(parameter: Any) -> str:
    if parameter.name == "help":
        return ""
    name = (
        ", ".join(parameter.opts)
        if parameter.param_type_name == "option"
        else (parameter.name or "").upper()
    )
    default = (
        ""
        if parameter.default in (None, False, "") or callable(parameter.default)
        else f"`{parameter.default}`"
    )
    return f"| `{name}` | {default} | {_cell(getattr(parameter, 'help', '') or '')} |"


def _help(program: str, top: ArgumentParser) -> dict[str, str]:
    """The help of a program, and of each of its commands."""
    from argparse import _SubParsersAction

    inner = next(action.choices for action in top._actions if isinstance(action, _SubParsersAction))
    return {
        program: top.format_help(),
        **{f"{program} {name}": command.format_help() for name, command in inner.items()},
    }


def http() -> str:
    """Every path of the HTTP API, from its OpenAPI document."""
    from aggregator.http.api import create_api
    from aggregator.http.dashboard.reference import operations

    def nothing(*_: object) -> Any:
        raise AssertionError("a document asks for no fleet")

    store: Any = nothing
    document = create_api(nothing, store, nothing, nothing, nothing).openapi()
    parts = [
        "# HTTP",
        "",
        "Generated from the service's OpenAPI document, which it serves at `/openapi.json`; its "
        "page",
        "",
    ]
    parts[-1:] = [
        "`/docs` leads to the dashboard's page of the API, and loads nothing from another machine.",
        "",
    ]
    for operation in operations(document):
        parts += [f"## {operation.method} {operation.path}", "", operation.about, ""]
        if operation.parameters:
            parts += ["| parameter | in | type | meaning |", "|---|---|---|---|"]
            parts += [
                f"| `{p.name}` | {p.where} | {p.kind} | {_cell(p.about)} |"
                for p in operation.parameters
            ]
            parts.append("")
        parts += [
            "| status | meaning |",
            "|---|---|",
            *(f"| {status} | {_cell(told)} |" for status, told in operation.answers),
            "",
        ]
    return "\n".join(parts)


def mqtt() -> str:
    """Topics and messages, from the AsyncAPI document."""
    document = json.loads((ROOT / "wire" / "asyncapi.json").read_text())
    parts = [
        "# MQTT",
        "",
        "Generated from `wire/asyncapi.json`, which is generated from the code. The "
        "[specification](../wire/SPEC.md) says what a client",
        "",
    ]
    parts[-1:] = ["MUST do.", "", "## Topics", "", "| topic | messages | about |", "|---|---|---|"]
    for channel in document["channels"].values():
        names = ", ".join(
            f"[{document['components']['messages'][m]['name']}](#{m.lower()})"
            for m in channel["messages"]
        )
        parts.append(
            f"| `{channel['address']}` | {names} | {_cell(channel.get('description', ''))} |"
        )
    parts.append("")
    for key in document["components"]["messages"]:
        schema = document["components"]["schemas"].get(key, {})
        parts += [f"## {key}", "", _cell(schema.get("description", "")), ""]
        if fields := schema.get("properties"):
            needed = set(schema.get("required", ()))
            parts += ["| field | type | needed | meaning |", "|---|---|---|---|"]
            parts += [
                (
                    f"| `{n}` | {_kind(f)} | {'yes' if n in needed else ''} | "
                    f"{_cell(f.get('description', ''))} |"
                )
                for n, f in fields.items()
            ]
            parts.append("")
    return "\n".join(parts)


def python() -> str:
    """Return the page of `import shoal`, from its docstrings."""
    import shoal

    parts = [
        "# Python",
        "",
        "Generated from the docstrings of what `import shoal` gives. [From Python](python.md) is a "
        "tutorial.",
        "",
    ]
    for module, names in shoal._PLACES.items():
        parts += [line for name in names if name != "STOP" for line in (f"::: {module}.{name}", "")]
    parts += [
        "## On a device",
        "",
        "What an application on a board predicts with.",
        "",
        "::: edge_client.Model",
        "",
    ]
    parts += [
        "## For a method of your own",
        "",
        "Base classes of [parts of your own](extend.md).",
        "",
    ]
    parts += [line for name in BASES for line in (f"::: {name}", "")]
    return "\n".join(parts)


def metrics() -> str:
    """Return the page of metrics, and of the alerts on them."""
    import yaml
    from prometheus_client.parser import text_string_to_metric_families

    from aggregator.fleet.records import Fleet
    from aggregator.http.monitoring.metrics import CampaignMetrics
    from aggregator.service.conditions import Conditions, ServiceCounters
    from aggregator.view.fleet import FleetView
    from helper.core.ledger import Ledger
    from helper.metrics import HelperMetrics

    idle = Conditions({}, True, "", "", ServiceCounters(), {})
    collector = CampaignMetrics(lambda: FleetView(Fleet()), lambda: idle, dict)
    parts = ["# Metrics and alerts", "", "Generated from the answers at `/metrics`."]
    families = {"## The service": collector.collect()}
    families["## A helper"] = text_string_to_metric_families(HelperMetrics(Ledger).text())
    for title, metrics in families.items():
        parts += ["", title, "", "| metric | kind | meaning |", "|---|---|---|"]
        for metric in sorted(metrics, key=lambda metric: metric.name):
            name = metric.name + ("_total" if metric.type == "counter" else "")
            parts.append(f"| `{name}` | {metric.type} | {_cell(metric.documentation)} |")
    parts += ["", "## Alerts", "", "Generated from `deploy/monitoring/alerts.yml`; [get alerts]"]
    parts[-1] += "(alerts.md#what-to-do-about-each) says what to do about each."
    parts += ["", "| alert | when | for | severity | what it says |", "|---|---|---|---|---|"]
    alerts = yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yml").read_text())
    for rule in (rule for group in alerts["groups"] for rule in group["rules"]):
        cells = (f"`{rule['alert']}`", f"`{_cell(rule['expr'])}`", rule.get("for", "at once"))
        words = rule["labels"]["severity"], _cell(rule["annotations"]["summary"])
        parts.append("| " + " | ".join((*cells, *words)) + " |")
    return "\n".join(parts)


def errors() -> str:
    """Return the page of every error that the product raises on purpose, by folder."""
    from wire import errors as kinds

    names = {n for n, k in vars(kinds).items() if isinstance(k, type) and issubclass(k, Exception)}
    parts = ["# Errors", "", "Generated from the code: every message of an error that Shoal raises"]
    parts[-1] += " on purpose. `…` stands for a value. A command prints the message after `error:`,"
    parts += ["and ends with the error's status, which is 2 if no other is said.", ""]
    for room in ("shoal", "simulation", "algorithms", "export", "aggregator", "edge_client"):
        rows = set[tuple[str, str]]()
        for file in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                match node:
                    case ast.Raise(ast.Call(ast.Name(kind), [text, *_])) if kind in names:
                        rows.add((_message(text), kind))
        parts += [f"## {room}", "", "| message | error |", "|---|---|"]
        parts += [f"| {_cell(text)} | {kind} |" for text, kind in sorted(rows) if text.strip("… ")]
        parts.append("")
    return "\n".join(parts)


def _message(text: ast.expr) -> str:
    """Return the text of an error, with `…` where it has values."""
    match text:
        case ast.Constant(str(words)):
            return words
        case ast.JoinedStr(values):
            return "".join(map(_message, values))
        case ast.BinOp(left, ast.Add(), right):
            return _message(left) + _message(right)
    return "…"


def _kind(schema: Mapping[str, Any]) -> str:
    if reference := schema.get("$ref", ""):
        return posixpath.basename(str(reference))
    kinds = [_kind(each) for each in schema.get("anyOf", ())]
    return " or ".join(kinds) or str(schema.get("type", schema.get("const", "")))


def _cell(text: str) -> str:
    """Text in a cell of a table."""
    for sign, shown in (("|", "\\|"), ("<", "&lt;"), ("[", "\\["), ("*", "\\*")):
        text = text.replace(sign, shown)
    return " ".join(text.split())


PAGES: Mapping[str, Callable[[], str]] = {
    "reference-commands.md": commands,
    "reference-choices.md": choices,
    "reference-http.md": http,
    "reference-mqtt.md": mqtt,
    "reference-metrics.md": metrics,
    "reference-errors.md": errors,
    "reference-python.md": python,
}
