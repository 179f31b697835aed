"""Options of a partition, or of another choice, as a user writes them: ``name:key=value:key=value``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from wire.errors import ConfigError

Value = int | float | str


@dataclass(frozen=True)
class Option:
    """One option: what it is when it is not given (its type is the option's), what it means, and what it may be."""

    default: Value
    about: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()

    def read(self, text: str) -> Value:
        """The value that `text` stands for.

        Raises:
            ValueError: not such a value; the message says what was expected.
        """
        if isinstance(self.default, str):
            if self.choices and text not in self.choices:
                raise ValueError(f"expected {' or '.join(self.choices)}")
            return text
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        span = f"{kind} from {self.low:g}" + (f" to {self.high:g}" if self.high < math.inf else "")
        try:
            value = type(self.default)(text)
        except ValueError:
            raise ValueError(f"expected {span}") from None
        if not self.low <= value <= self.high or not math.isfinite(value):
            raise ValueError(f"expected {span}")
        return value


def split_name(text: str) -> str:
    """The name before the first colon."""
    return text.partition(":")[0]


def read_options(text: str, known: Mapping[str, Option], what: str = "partition") -> dict[str, Value]:
    """Every option of `known`, as `text` (``name:key=value:...``) says or else by default. `what` it chooses stands in the errors.

    Raises:
        ConfigError: an option that there is not, one given twice, or a value it cannot have.
    """
    values = {key: option.default for key, option in known.items()}
    given = [part for part in text.split(":")[1:] if part]
    keys = [part.partition("=")[0].strip() for part in given]
    for key, part in zip(keys, given, strict=True):
        value = part.partition("=")[2].strip()
        if "=" not in part:
            raise ConfigError(f"{what} {text!r}: {part!r} is not of the form key=value")
        if key not in known:
            raise ConfigError(f"{what} {text!r}: no option {key!r}, expected one of {', '.join(known)}")
        if keys.count(key) > 1:
            raise ConfigError(f"{what} {text!r}: {key} is given twice")
        try:
            values[key] = known[key].read(value)
        except ValueError as error:
            raise ConfigError(f"{what} {text!r}: {key} is {value!r}, {error}") from None
    return values
