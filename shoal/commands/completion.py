"""`shoal completion`: commands and options in a shell."""

from typing import Annotated

import typer

from shoal.dispatch import handled_by


@handled_by("completion", says=False)
def completion(shell: Annotated[str, typer.Argument(help="bash or zsh.")]) -> None:
    """Print what bash or zsh needs to complete commands and options. Nothing of Shoal is loaded
    when a shell completes."""
