"""What a command says about input that it can use, but that is probably a mistake."""

import sys


def warn(text: str) -> None:
    """Print a warning on standard error, if there is one."""
    if text:
        print(f"warning: {text}", file=sys.stderr)
