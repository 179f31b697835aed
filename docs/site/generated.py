"""The pages of the site that are made: commands, HTTP, MQTT, metrics, errors, Python."""

import ast
import json
import posixpath
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


def commands() -> str:
    """Every command with its options, as its help has them."""
    import typer

    from shoal.cli import COMMANDS, application

    parts = [
        "# Commands",
        "",
        "Made from the commands themselves. `shoal COMMAND --help` says the same; "
        "`docs/simulate.md` and the other",
    ]
    parts += [
        "pages say what it means. Every option can be set in the environment too: `--min-devices` "
        "of `shoal serve` is",
        "",
    ]
    parts[-1:] = ["`SHOAL_SERVE_MIN_DEVICES`; one of `shoal-edge`, `SHOAL_EDGE_MAX_PAYLOAD`.", ""]
    for name, about in COMMANDS.items():
        group = typer.main.get_command(application(name))
        parts += [f"## shoal {name}", "", about.summary + f" Needs `shoal[{about.extra}]`.", ""]
        parts += list(_command(f"shoal {name}", group.commands[name]))
    parts += _settings()
    for title, told in _edge_help().items():
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


def _edge_help() -> Mapping[str, str]:
    """The help of `shoal-edge`, and of each of its commands."""
    from argparse import _SubParsersAction

    from edge_client.options import parser

    top = parser()
    inner = next(action.choices for action in top._actions if isinstance(action, _SubParsersAction))
    return {
        "shoal-edge": top.format_help(),
        **{f"shoal-edge {name}": command.format_help() for name, command in inner.items()},
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
        "Made from the service's own OpenAPI document, which it serves at `/openapi.json`; its "
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
        "Made from `wire/asyncapi.json`, which is made from the code. The "
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
    """What `import shoal` gives, from its docstrings."""
    import shoal

    parts = [
        "# Python",
        "",
        "Made from the docstrings of what `import shoal` gives. [From Python](python.md) is a "
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
        "What [methods of your own](extend.md) derive from.",
        "",
    ]
    parts += [line for name in BASES for line in (f"::: {name}", "")]
    return "\n".join(parts)


def metrics() -> str:
    """Return the page of metrics, and of the alerts on them."""
    import yaml

    from aggregator.fleet.records import Fleet
    from aggregator.http.metrics import CampaignMetrics
    from aggregator.service.conditions import Conditions, Counted
    from aggregator.view.fleet import FleetView

    idle = Conditions({}, True, "", "", Counted(), {})
    collector = CampaignMetrics(lambda: FleetView(Fleet()), lambda: idle, dict)
    parts = ["# Metrics and alerts", "", "Made from what the service answers at `/metrics`.", ""]
    parts += ["| metric | kind | meaning |", "|---|---|---|"]
    for metric in sorted(collector.collect(), key=lambda metric: metric.name):
        name = metric.name + ("_total" if metric.type == "counter" else "")
        parts.append(f"| `{name}` | {metric.type} | {_cell(metric.documentation)} |")
    parts += ["", "## Alerts", "", "Made from `deploy/monitoring/alerts.yml`; [install]"]
    parts[-1] += "(install.md#alerts) says what to do about each."
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
    parts = ["# Errors", "", "Made from the code: every message of an error that Shoal raises on"]
    parts[-1] += " purpose. `…` stands for a value. A command prints the message after `error:`,"
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
    "reference-http.md": http,
    "reference-mqtt.md": mqtt,
    "reference-metrics.md": metrics,
    "reference-errors.md": errors,
    "reference-python.md": python,
}
