"""Parts of every command: ``--json``, the line about loading torch, the record of the options.

The module imports nothing that takes time.
"""

import inspect
import io
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TextIO, TypeVar, get_origin

import msgspec
import typer

from host.settings import Setting, settings_of, warn_of_variables
from shoal.asked import NOW, describe
from shoal.cli import naming_extra
from wire.errors import ConfigError

T = TypeVar("T")

CONTEXT = inspect.Parameter(
    "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
)
IN_JSON = inspect.Parameter(
    "in_json",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print JSON: an object with the result, or with `said`, the lines for people.",
        ),
    ],
)
"""The ``--json`` option of commands that print for people alone."""

COMMANDS = r"shoal\.commands\."
"""Pattern of the modules of commands."""
UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


class Options(NamedTuple):
    """Options of a command that are settings of structs, named in the annotation of a parameter.

    The parameter receives their values by field: ``Annotated[dict[str, Any],
    Options((CampaignSettings,))]``.

    `live`: True for only the settings that may change while a campaign runs, and only the values
    that a person gives. `only`: names of the settings that become options; all if empty. `without`:
    names of settings that become none here.
    """

    structs: tuple[type[msgspec.Struct], ...]
    prefix: str = ""
    live: bool = False
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def settings(self) -> list[Setting]:
        """Return the settings that have an option."""
        return [
            setting
            for struct in self.structs
            for setting in settings_of(struct, self.prefix).values()
            if setting.parameter
            and setting.name not in self.without
            and (not self.only or setting.name in self.only)
            and (not self.live or (setting.about["live"] and get_origin(setting.bare) is not dict))
        ]


def command(*, loads: str = "", in_json: bool = True) -> Callable[[Callable[..., T]], Any]:
    """Decorate the function of a command.

    The function's parameters are the options. Its body imports what takes time, so that help and
    usage errors come at once. The callback of a group does nothing if a command of the group is
    named.

    Args:
        loads: a module that imports torch and that the body imports. The command says that torch is
            loading, and an error in a user's own code names its file and line.
        in_json: add ``--json``, unless the function prints JSON itself (`as_json`). With it the
            command prints what the function returns, or ``said``, the lines that it printed. A
            command that `loads` prints these lines to standard error meanwhile, because it takes
            long.
    """

    def decorate(act: Callable[..., T]) -> Any:
        act.__annotations__.pop("return", None)  # it may name a type that only the body imports
        signature = inspect.signature(act, eval_str=True)

        @wraps(act)
        def call(context: typer.Context, **given: Any) -> None:
            if context.invoked_subcommand is not None:
                return
            NOW.set(_asked(context))
            quiet = given.pop(IN_JSON.name, False)
            for name, options in expanded.items():
                given[name] = _read(context, options, given)
            silent = quiet or given.get("as_json", False)
            outermost: Any = context
            while outermost.parent is not None and outermost.parent.parent is not None:
                outermost = outermost.parent
            name = str(outermost.info_name)
            if context.auto_envvar_prefix and not hasattr(context.command, "commands"):
                options_of = (each.name for each in context.command.params if each.name)
                for text in warn_of_variables(f"{context.auto_envvar_prefix}_", options_of):
                    warn(text)
            run = naming_extra(name)(partial(act, **given))
            if loads:
                with naming_extra(name), _loading(context.command_path, silent):
                    blaming = import_module("algorithms.outside").blaming
                    import_module(loads)
                run = blaming()(run)
            with warnings.catch_warnings():
                warnings.filterwarnings("always", module=COMMANDS)
                warnings.showwarning = partial(_show_warning, warnings.showwarning)
                if quiet:
                    _print_in_json(run, sys.stderr if loads else None)
                else:
                    run()

        parameters = [CONTEXT]
        expanded: dict[str, Options] = {}
        for each in signature.parameters.values():
            options = next(
                (o for o in getattr(each.annotation, "__metadata__", ()) if isinstance(o, Options)),
                None,
            )
            if options is None:
                parameters.append(each)
            else:
                expanded[each.name] = options
                parameters += [_option(setting, options.live) for setting in options.settings()]
        if in_json and "as_json" not in signature.parameters:
            parameters.append(IN_JSON)
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return decorate


def _option(setting: Setting, live: bool) -> inspect.Parameter:
    """Return the option of a setting, whose value the setting checks instead of Typer."""
    default = None if live else setting.default
    kind, plain = setting.bare, setting.flag
    if kind is bool:
        flag = f"{plain}/--no-{plain[2:]}" if default else plain
        hint: Any = Annotated[bool, typer.Option(flag, help=setting.text)]
    elif get_origin(kind) is dict:
        hint = Annotated[list[str] | None, typer.Option(plain, help=setting.text)]
        default = None
    else:
        low, high = setting.meta.ge, setting.meta.le
        bounds = "" if low is None else f" {low:g}.." + ("" if high is None else f"{high:.10g}")
        name = {int: "int", float: "float", Path: "path"}.get(kind, "str")
        hint = Annotated[
            Any,
            typer.Option(plain, help=setting.text, parser=_as_given, metavar=f"<{name}{bounds}>"),
        ]
    kind_of = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(setting.parameter, kind_of, default=default, annotation=hint)


def _as_given(value: Any) -> Any:
    return value


def _read(context: typer.Context, options: Options, given: dict[str, Any]) -> dict[str, Any]:
    """Take the values of settings from the parameters of a command, and check them.

    Raises:
        ConfigError: a value is not allowed; the text names the option, variable or line it is from.
    """
    values = {}
    for setting in options.settings():
        value = given.pop(setting.parameter)
        if value is None and get_origin(setting.bare) is dict:
            value = {}  # Typer passes on an empty list as None
        source = context.get_parameter_source(setting.parameter)
        origin = {
            "COMMANDLINE": setting.flag,
            "ENVIRONMENT": f"{context.auto_envvar_prefix}_{setting.parameter}".upper(),
            "DEFAULT_MAP": line_of(context.params.get("config"), setting.parameter),
        }.get(source.name if source is not None else "")
        if origin is not None:
            values[setting.name] = setting.read(value, origin)
        elif not options.live:
            values[setting.name] = setting.default
    return values


def line_of(path: Path | None, parameter: str) -> str:
    """Return the file and line of a setting, or the file alone; empty without a file."""
    if path is None:
        return ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.partition("=")[0].strip().replace("-", "_") == parameter:
            return f"{path}, line {number}"
    return str(path)


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of a duration such as ``30m``, ``12h`` or ``7d``.

    Raises:
        ConfigError: it has another form; the text names the option.
    """
    if not (match := re.fullmatch(r"([0-9]{1,6})([mhd])", text)):
        raise ConfigError(f"{option} must be a number with m, h or d, such as 12h, got {text!r}")
    return int(match[1]) * UNITS_S[match[2]]


def minute_of(at_s: float) -> str:
    """Return a Unix time to the minute, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")


def warn(text: str) -> None:
    """Print a warning on standard error, unless the text is empty."""
    if text:
        print(f"warning: {text}", file=sys.stderr)


def _show_warning(
    others: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any
) -> None:
    """Print a command's own warning on one line; pass any other warning to `others`.

    `place` is the origin of the warning; its first item is the file.
    """
    if Path(place[0]).parent.name == "commands" and category is UserWarning:
        warn(str(message))
    else:
        others(message, category, *place)


def print_json(value: Any) -> None:
    """Print a value as JSON: a struct or a dataclass as an object with its fields.

    Times in fields that end in ``_s`` are Unix times.
    """
    print(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


@contextmanager
def _loading(path: str, quiet: bool) -> Iterator[None]:
    """Print a line that torch is loading; a terminal erases it afterwards."""
    transient = sys.stdout.isatty()
    if not quiet:
        print(f"{path}: loading torch", end="" if transient else "\n", flush=True)
    try:
        yield
    finally:
        if transient and not quiet:
            print("\r\x1b[K", end="", flush=True)


def _asked(context: typer.Context) -> Any:
    options = [each for each in context.command.params if each.param_type_name == "option"]
    values = [
        (each.opts[0], context.params.get(each.name or ""), each.get_default(context))
        for each in options
    ]
    return describe(context.command_path, values)


class _Lines(io.StringIO):
    """A text stream that keeps what is printed and also writes it to another stream."""

    def __init__(self, beside: TextIO | None) -> None:
        super().__init__()
        self._beside = beside

    def write(self, text: str) -> int:
        if self._beside is not None:
            self._beside.write(text)
        return super().write(text)


def _print_in_json(act: Callable[[], Any], beside: TextIO | None) -> None:
    """Print as JSON what a command returns, or the lines that it printed.

    A command that ends with a status also prints first.
    """
    lines, result, end = _Lines(beside), None, None
    with redirect_stdout(lines):
        try:
            result = act()
        except typer.Exit as answered:
            end = answered
    print_json({"said": lines.getvalue().splitlines()} if result is None else result)
    if end is not None:
        raise end
