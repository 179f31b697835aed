"""What commands print for programs."""

from typing import Any

import msgspec


def print_json(value: Any) -> None:
    """Print a value as JSON: a struct or a dataclass as an object with its fields. Times in fields
    that end in ``_s`` are Unix times."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())
