"""The default server's half of an objective, and the base of wrappers of either half."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import ClassVar, Generic, TypeVar, cast

from algorithms.core.contract import LocalModel, ObjectiveMemory, Programs, Work, without
from algorithms.spec import WithOptions
from wire.arrays.tensors import Tensors
from wire.messages import Evaluate, Verb


class DefaultCoordinator(WithOptions):
    """The server's half of an objective that needs no state and sends only the model.

    Each round a device evaluates the model that it receives, then trains it; after the last round
    it evaluates. Subclasses change parts of this. They use numpy only, because the server does not
    have the model's code.
    """

    grouping: ClassVar[str] = ""
    """Name of the only grouping with which the objective works; empty if any will do."""
    own_rule: ClassVar[bool] = False
    """True if the memory is valid only for models that are plain means.

    No server optimizer can be combined with it.
    """
    responds: ClassVar[bool] = False
    """True if devices report measurements besides models; no privacy mechanism covers them."""
    absorbs: ClassVar[bool] = False
    """True if `absorb` reads the round; if not, the server need not keep each model."""
    by_device: ClassVar[bool] = False
    """True if JSON values of the memory have devices as keys. False: groups, or there are none."""
    keeps: ClassVar[bool] = False
    """True if `closing` makes the personal model from the group's model alone.

    A device that joins late then needs nothing else.
    """

    before: ClassVar[tuple[Verb, ...]] = ()
    """Verbs of a device before its training in a round; `after` are those after it."""
    after: ClassVar[tuple[Verb, ...]] = ()

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        """Return the memory before the first round.

        `initial` are the bundle's initial tensors; `seed`, the campaign's, is for random draws.
        """
        return ObjectiveMemory()

    def forget(
        self, context: ObjectiveMemory, device_id: str, alone: str | None
    ) -> ObjectiveMemory:
        """Return the memory without entries of a device, or of the group in which it is `alone`."""
        key = device_id if self.by_device else alone
        info = {k: without(value, key) for k, value in context.info.items()}
        prefix = f"{alone}/"
        arrays = {
            k: v for k, v in context.arrays.items() if alone is None or not k.startswith(prefix)
        }
        return ObjectiveMemory(arrays, info)

    def preparing(self, context: ObjectiveMemory) -> bool:
        """Return True if the next round is a preparation.

        No device is grouped in a preparation, and it does not count as a round of training.
        """
        return False

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        """Return the verbs of devices in the next round."""
        return {"": (Evaluate(), *self.training(context, work))}

    def training(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        """Return the verbs of a round after a device has evaluated the model that it received."""
        return (*self.before, work.train(), *self.after)

    def closing(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        """Return the verbs of every device after the last round; its last evaluation counts."""
        return (Evaluate(),)

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        """Return the memory after a round.

        `models` are the local models, sorted by device id, `membership` the group of every device,
        and `averages` the new model of each group (roles shared and statistic). In a preparation
        every device is in group `NEWCOMER`.
        """
        return context

    def received(
        self, context: ObjectiveMemory, models: Mapping[str, Tensors], key: str
    ) -> Tensors:
        """Return the tensors ``received/NAME`` for devices that start from a key's model."""
        return {}


Whole = TypeVar("Whole")


class Wrapper(Generic[Whole]):
    """A wrapper of one half of an objective, which keeps the wrapper alive.

    Every caller of a replaced method, the half's own methods included, then calls the wrapper's
    method. `inner` holds the methods from before this wrapper, `whole` the half with all of its
    wrappers. Wrappers nest: the last one is called first.
    """

    replaces: tuple[str, ...] = ()
    """Names of the methods and declarations that replace the half's."""

    def __init__(self, whole: Whole) -> None:
        before = SimpleNamespace(**{name: getattr(whole, name) for name in self.replaces})
        self.whole, self.inner = whole, cast(Whole, before)
        for name in self.replaces:
            setattr(whole, name, getattr(self, name))
