"""The program `shoal`: its commands, and how an error becomes a line and an exit status.

`shoal --help` and `shoal --version` load no package of an extra, so they work with `shoal[edge]`
alone. A command's options (`shoal.commands`) are imported when its name is read, and its body's
imports after its options.
"""

import argparse
import gc
import io
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

from wire.errors import ConfigError, ShoalError


class Command(NamedTuple):
    """A command: the extra that installs what it needs, and its line in the list of commands.

    The command's own help begins with that line.
    """

    extra: str
    summary: str
    examples: tuple[str, ...] = ()
    """Shell lines at the end of the command's help; a test runs each in the docs."""
    within: tuple[str, ...] = ()
    """Shell lines for the help of its subcommands, one for each."""


COMMANDS = {
    "simulate": Command(
        "simulation",
        "Simulate a fleet on this machine.",
        ("shoal simulate --data watch --algorithm distfl --rounds 3 --out runs/try",),
    ),
    "compare": Command(
        "simulation",
        "Compare algorithms in one table and one picture.",
        (
            "shoal compare --algorithms fedavg,distfl,dbe+distfl+irls --rounds 1 --devices 4 "
            "--out runs/compare",
        ),
    ),
    "ui": Command(
        "simulation",
        "Show the runs of a folder in a browser, and compare them.",
        ("shoal ui runs",),
    ),
    "algorithms": Command(
        "aggregator",
        "List the choices of an algorithm: objectives, groupings, means, privacy, tasks.",
        ("shoal algorithms --json",),
    ),
    "check": Command(
        "simulation",
        "Check that a choice of your own keeps the contract of an algorithm's choices.",
        ("shoal check examples/mixup.py:MixupHead",),
    ),
    "download": Command(
        "export",
        "Download a public data set, or write the watches' data as folders of devices.",
        ("shoal download watch --to boards",),
    ),
    "data": Command(
        "simulation",
        "Show what is read in files of data, and what was taken for what.",
        ("shoal data show boards",),
        ("shoal data show boards",),
    ),
    "demo": Command(
        "simulation",
        "Train twenty real smartwatches over MQTT, find their groups, and compare with FedAvg.",
        ("shoal demo --phones 3",),
    ),
    "export": Command(
        "export",
        "Export the training step for devices, check it against eager torch, and sign it.",
        ("shoal export --data watch --out runs/bundle",),
        ("shoal export inspect runs/bundle-executorch",),
    ),
    "init": Command(
        "aggregator",
        "Write a TOML file with every setting of `shoal serve`, and set up TLS.",
        ("shoal init fleet.toml --tls localhost --folder runs/fleet --bundle runs/bundle",),
    ),
    "serve": Command(
        "aggregator",
        "Run the aggregator until Ctrl-C or SIGTERM.",
        ("shoal serve --config fleet.toml --release auto",),
    ),
    "vouch": Command(
        "aggregator",
        "Sign a service's key with the root key, so that devices believe the service.",
        ("shoal vouch --service runs/served --fleet default --key runs/bundle/signing.key",),
    ),
    "enrol": Command(
        "aggregator",
        "Make tokens with which devices get certificates, and approve devices.",
        ("shoal enrol token runs/fleet --tags lab --expires 12h",),
        (
            "shoal enrol token runs/fleet --tags lab --expires 12h",
            "shoal enrol list runs/fleet",
            "shoal enrol approve runs/fleet pi-1",
            "shoal enrol reject runs/fleet pi-2",
            "shoal enrol audit runs/fleet",
            "shoal enrol renew runs/fleet",
        ),
    ),
    "token": Command(
        "aggregator",
        "Make, list and revoke tokens for a service's HTTP API.",
        ("shoal token new runs/served --name jane --role operator --expires 90d",),
        (
            "shoal token new runs/served --name jane --role operator --expires 90d",
            "shoal token list runs/served",
            "shoal token revoke runs/served grafana",
        ),
    ),
    "acl": Command(
        "aggregator",
        "Print Mosquitto's access list for a fleet.",
        ("shoal acl --fleet watches",),
    ),
    "campaign": Command(
        "aggregator",
        "Start, list, pause, resume, change, roll back and end campaigns of a service.",
        ("shoal campaign pause runs/served autumn",),
        (
            "shoal campaign start runs/served autumn --bundle runs/bundle --algorithm fedavg "
            "--rounds 10",
            "shoal campaign list runs/served",
            "shoal campaign pause runs/served autumn",
            "shoal campaign resume runs/served autumn",
            "shoal campaign abort runs/served autumn",
            "shoal campaign set runs/served autumn --rounds 30 --deadline 300 --lr-schedule "
            "cosine:warmup=3",
            "shoal campaign rollback runs/served run-1 --to 3",
            "shoal campaign exclude runs/served run-1 pi-1 --since 4",
            "shoal campaign include runs/served run-1 pi-1",
        ),
    ),
    "models": Command(
        "aggregator",
        "Show and roll out a fleet's releases, and write its models as files.",
        ("shoal models rollback runs/served --to 1",),
        (
            "shoal models list runs/served",
            "shoal models show runs/served 2",
            "shoal models release runs/served",
            "shoal models rollout runs/served --pause",
            "shoal models rollback runs/served --to 1",
            "shoal models rounds runs/served",
            "shoal models export runs/served --to runs/model.onnx",
            "shoal models inspect runs/served",
            "shoal models diff runs/served 0 1@3 --data windows.npz",
        ),
    ),
    "devices": Command(
        "aggregator",
        "List a fleet's devices; tag, ban or forget one.",
        ('shoal devices list runs/served --where "tags has nights and not online"',),
        (
            'shoal devices list runs/served --where "tags has nights and not online"',
            "shoal devices show runs/served pi-1",
            "shoal devices profile runs/served --out runs/fleet.csv",
            "shoal devices tag runs/served pi-1 pi-2 --tags nights,berlin",
            'shoal devices untag runs/served --where "tags has berlin" --tags nights',
            "shoal devices ban runs/served pi-1 --reason stolen",
            "shoal devices unban runs/served pi-1",
            "shoal devices forget runs/served pi-1 --yes",
        ),
    ),
    "backup": Command(
        "aggregator",
        "Copy a service's folder while the service runs.",
        ("shoal backup runs/served backups/sunday",),
    ),
    "restore": Command(
        "aggregator",
        "Check a copy, and put it in the place of a service's folder.",
        ("shoal restore backups/sunday runs/served",),
    ),
    "doctor": Command(
        "aggregator",
        "Check everything in a service's folder, and mend what can be mended.",
        ("shoal doctor runs/served --bundle runs/bundle --mend",),
    ),
    "completion": Command(
        "aggregator",
        "Print what bash or zsh needs to complete commands and options.",
        ("shoal completion bash > ~/.local/share/bash-completion/completions/shoal",),
    ),
}

GROUPS = {
    "try it on this machine": ("demo", "simulate", "compare", "ui", "download", "data"),
    "algorithms": ("algorithms", "check"),
    "run a fleet": ("export", "init", "serve", "enrol", "token", "acl", "vouch"),
    "look after a fleet": ("campaign", "models", "devices", "doctor", "backup", "restore"),
    "the shell": ("completion",),
}
"""Names of the commands under each heading of the list of commands; together every command."""
FIRST = ("simulate", "compare", "export", "serve")
"""Commands with an example in the help of `shoal` itself."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line up to the command's name.

    The command parses the rest itself.
    """
    extras: dict[str, list[str]] = {}
    for name, command in COMMANDS.items():
        extras.setdefault(command.extra, []).append(name)
    needs = "; ".join(f"'shoal[{extra}]' for {', '.join(names)}" for extra, names in extras.items())
    top = argparse.ArgumentParser(
        prog="shoal",
        description="On-device federated learning: finds which devices share a data distribution\n"
        "and gives each the model that fits it.",
        epilog=_listing(
            f"pip install {needs}. The client of a device is shoal-edge: pip install 'shoal[edge]'."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="shoal [-h] [--version] COMMAND ...",
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    for name in COMMANDS:
        commands.add_parser(name, add_help=False)
    return top


def _listing(needs: str) -> str:
    """Return the commands by heading, examples, and what to install, as text of the help."""
    width = max(40, min(100, shutil.get_terminal_size().columns) - 2)
    lines: list[str] = []
    for title, names in GROUPS.items():
        lines += [f"{title}:"]
        for name in names:
            lines += textwrap.wrap(
                COMMANDS[name].summary,
                width,
                initial_indent=f"  {name:<12}",
                subsequent_indent=" " * 14,
            )
        lines.append("")
    lines += ["examples:", *(f"  {line}" for name in FIRST for line in COMMANDS[name].examples), ""]
    lines += ["`shoal COMMAND --help` has the options of a command, and examples.", ""]
    return "\n".join(lines + textwrap.wrap(needs, width))


def unknown(name: str) -> str:
    """Return the error text for a command that does not exist, with the nearest name."""
    near = get_close_matches(name, COMMANDS, 1)
    return f"there is no command {name!r}; " + (
        f"did you mean {near[0]}?" if near else "`shoal --help` lists all"
    )


@contextmanager
def naming_extra(name: str) -> Iterator[None]:
    """Turn the failed import of a missing package into an error that names the command's extra.

    Raises:
        ConfigError: a package is not installed; the text says which extra installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (
            error.name is None or error.name.partition(".")[0] in sys.modules
        ):  # a part of an installed package is missing: no extra would help
            raise
        raise ConfigError(
            f"shoal {name} needs the package {error.name}: pip install "
            f"'shoal[{COMMANDS[name].extra}]'"
        ) from None


def application(name: str) -> Any:
    """Return the Typer application with this one command, which parses the whole command line.

    Its help is plain, as that of `shoal` is.

    Raises:
        ConfigError: Typer is not installed.
    """
    with naming_extra(name):
        import typer

        command = getattr(import_module(f"shoal.commands.{name}"), name)
    epilog = _examples(COMMANDS[name].examples)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(lambda: None)  # without it Typer would not expect the command's name
    if isinstance(command, typer.Typer):
        for subcommand in command.registered_commands:
            words = (
                f"shoal {name} {subcommand.name or getattr(subcommand.callback, '__name__', '')} "
            )
            subcommand.epilog = _examples(
                [line for line in COMMANDS[name].within if line.startswith(words)]
            )
        app.add_typer(command, name=name, epilog=epilog)
    else:
        app.command(name, epilog=epilog)(command)
    return app


def _examples(lines: Sequence[str]) -> str | None:
    """Return the end of a command's help, or None without examples.

    The \\b keeps Typer from filling the lines up.
    """
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)]) if lines else None


def main() -> None:
    """Run a command and exit with its status.

    A `ShoalError` is printed as one line and gives its exit status; Ctrl-C gives 130.
    """
    top = parser()
    if sys.argv[1:] and not sys.argv[1].startswith("-") and sys.argv[1] not in COMMANDS:
        top.error(unknown(sys.argv[1]))
    arguments = top.parse_args(sys.argv[1:2])
    if arguments.version:
        from importlib.metadata import version

        print(f"shoal {version('shoal')}")
        return
    if arguments.command is None:
        top.print_help()
        sys.exit(2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            line_buffering=True
        )  # a reader of the log gets each line when it is printed
    try:
        application(arguments.command)(prog_name="shoal", auto_envvar_prefix="SHOAL")
    except ShoalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()  # the interpreter's last collection would take 4 s after an export
