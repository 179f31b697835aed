"""Where what is compiled on this machine is kept, by what it was made of: what is there already is
never built again."""

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """``$XDG_CACHE_HOME/shoal/KIND``, or ``~/.cache/shoal/KIND``; it need not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / kind
