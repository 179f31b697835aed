"""What an objective is wrapped with: an object whose methods take the place of the objective's."""

from types import SimpleNamespace
from typing import Generic, TypeVar, cast

Whole = TypeVar("Whole")


class Wrapper(Generic[Whole]):
    """Wraps one half of an objective, and is kept alive by it.

    Whatever calls a replaced method of the half calls the wrapper's from then on, the half's own
    methods included. The wrapper reaches the method as it was before by `inner`, and the half with
    all of its wrappers by `whole`. Wrappers nest: the last one comes first.
    """

    replaces: tuple[str, ...] = ()
    """Names of the methods and declarations that take the place of the half's."""

    def __init__(self, whole: Whole) -> None:
        before = SimpleNamespace(**{name: getattr(whole, name) for name in self.replaces})
        self.whole, self.inner = whole, cast(Whole, before)
        for name in self.replaces:
            setattr(whole, name, getattr(self, name))
