"""The command `shoal completion`: completion of commands and options in a shell."""

from typing import Annotated, Any

import typer

from shoal.cli import COMMANDS, application
from shoal.command import command
from wire.errors import ConfigError

SCRIPT = """\
# Completes shoal: commands, then commands of a command and options, and files after options.
_shoal() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" known=""
    local first="${{COMP_WORDS[1]}}" second="${{COMP_WORDS[2]}}"
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=( $(compgen -W "{commands} --help --version" -- "$word") )
        return
    fi
    case "$first $second" in
{cases}
    esac
    COMPREPLY=( $(compgen -W "$known" -- "$word") )
    case "$word" in -*) ;; *) COMPREPLY+=( $(compgen -f -- "$word") ) ;; esac
}}
complete -o filenames -F _shoal shoal
"""


@command(in_json=False)
def completion(shell: Annotated[str, typer.Argument(help="bash or zsh.")]) -> None:
    """Print what bash or zsh needs to complete commands and options.

    A shell completes from the printed script alone, without loading Shoal.
    """
    if shell not in ("bash", "zsh"):
        raise ConfigError(f"shell must be bash or zsh, got {shell!r}")
    if shell == "zsh":
        print("autoload -U +X compinit && compinit; autoload -U +X bashcompinit && bashcompinit")
    print(script(), end="")


def script() -> str:
    """Return the script for bash, which zsh understands as well."""
    following: dict[str, list[str]] = {}
    for name in COMMANDS:
        group: Any = typer.main.get_command(application(name))
        command = group.commands[name]
        inner = getattr(command, "commands", {})
        following |= {f"{name} {each}": _options(one) for each, one in sorted(inner.items())}
        following[f"{name} "] = [*sorted(inner), *_options(command)]
    cases = [
        f'        "{words}"{"*" * words.endswith(" ")}) known="{" ".join(after)}" ;;'
        for words, after in following.items()
    ]
    return SCRIPT.format(commands=" ".join(COMMANDS), cases="\n".join(cases))


def _options(command: Any) -> list[str]:
    return sorted(
        {
            each
            for option in command.params
            if option.param_type_name == "option"
            for each in option.opts
        }
        | {"--help"}
    )
