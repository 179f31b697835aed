"""What a name stands for: a class of the registry's tables, or one from outside."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from algorithms import outside
from algorithms.kinds import KINDS, Kind, kind_of
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.halves import TwoHalves
from algorithms.objectives.supervised import Supervised
from algorithms.options import options_of
from algorithms.spec import Choice, Options, is_outside
from wire.errors import ConfigError


class Entry(NamedTuple):
    """What a name stands for."""

    kind: Kind
    made: Any
    """A class; of an objective, its two halves."""
    source: str = ""
    """Of one from outside: the state of its source."""


@dataclass(frozen=True)
class Lookup:
    """Finds names in the tables, by kind, and outside of them."""

    tables: Mapping[Kind, Mapping[str, Any]]

    def find(self, name: str, source: str = "") -> Entry:
        """What a name stands for. `source`: the state that it must have, where that is known.

        Raises:
            ConfigError: it is from outside, and cannot be loaded, is of no kind, or is called as a
            registered choice is.
        """
        for kind in KINDS:
            if name in self.tables[kind]:
                return self._registered(kind, name)
        if is_outside(name):
            made, source = (outside.found(name, source), source) if source else outside.find(name)
            kind = kind_of(made, name)
        else:
            said, made, source = outside.find_installed(name)
            kind = kind_of(made, f"entry point {name!r}")
            if (kind, called(made)) != (said, name):
                group = outside.GROUPS[said]
                raise ConfigError(
                    f"entry point {name!r} of {source} ({group}) is the {kind} {called(made)!r}: "
                    "kind and name must be the same"
                )
        if any(called(made) in table for table in self.tables.values()):
            raise ConfigError(
                f"{name} is called {called(made)!r}, as a registered choice is: give it a `name` "
                "of its own"
            )
        return Entry(kind, self._whole(made), source)

    def made(self, kind: Kind, choice: Choice) -> Any:
        """The class that a choice of this kind names; of an objective, its two halves."""
        table = self.tables[kind]
        return (
            table[choice.name]
            if choice.name in table
            else self.find(choice.name, choice.source).made
        )

    def make(self, kind: Kind, choice: Choice) -> Any:
        """What a choice of this kind is with its options; not for objectives, whose halves take
        options apart."""
        return self.made(kind, choice)(**dict(choice.given))

    def names(self, kind: Kind) -> list[str]:
        """All names of a kind: those of the table, and those of installed packages after them."""
        own = [
            name
            for name, (k, _) in outside.installed().items()
            if k == kind and name not in self.tables[kind]
        ]
        return [*self.tables[kind], *own]

    def with_source(self, choice: Choice) -> Choice:
        """The choice with the state that its source is in now, if it has one and does not say it
        yet."""
        return choice if choice.source else replace(choice, source=self.find(choice.name).source)

    def known(self, *kinds: Kind) -> Mapping[str, Options]:
        """The options of every name of these kinds; those from outside are found when they are
        asked for."""
        return _Known(self, kinds)

    def _registered(self, kind: Kind, name: str) -> Entry:
        if name in outside.installed():
            entry = outside.installed()[name][1]
            raise ConfigError(
                f"{name!r} is registered here, and an installed package has it too "
                f"({entry.group}: {entry.value}): uninstall it"
            )
        return Entry(kind, self.tables[kind][name])

    def _whole(self, made: Any) -> Any:
        """An objective's two halves, where its device's half alone was named: the server's half is
        that of the registered objective that it derives from most closely."""
        if not (isinstance(made, type) and issubclass(made, Supervised)):
            return made
        servers = {halves.device: halves.server for halves in self.tables["objective"].values()}
        return TwoHalves(
            made,
            next((servers[base] for base in made.__mro__ if base in servers), DefaultCoordinator),
        )


@dataclass(frozen=True)
class _Known(Mapping[str, Options]):
    lookup: Lookup
    kinds: tuple[Kind, ...]

    def __getitem__(self, name: str) -> Options:
        if not is_outside(name) and not any(name in self.lookup.names(kind) for kind in self.kinds):
            raise KeyError(name)
        return options_of(self.lookup.find(name).made)

    def __iter__(self) -> Iterator[str]:
        return (name for kind in self.kinds for name in self.lookup.names(kind))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def called(made: Any) -> str:
    """The name that a class has given itself."""
    name: str = made.device.name if isinstance(made, TwoHalves) else made.name
    return name
