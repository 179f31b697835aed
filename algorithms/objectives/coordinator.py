"""The server's half of an objective that needs nothing from it; others change what differs. And
what either half is wrapped with: an object whose methods take the place of the half's."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import ClassVar, Generic, TypeVar, cast

from algorithms.core.contract import LocalModel, ObjectiveMemory, Programs, Work, without
from algorithms.spec import WithOptions
from wire.arrays.tensors import Tensors
from wire.messages import Evaluate, Verb


class DefaultCoordinator(WithOptions):
    """Every round: evaluate the model received, then train. After the last: evaluate. Nothing is
    sent besides the model. Numpy only: the server does not have the model's code."""

    grouping: ClassVar[str] = ""
    """Name of the only grouping it works with; empty when any will do."""
    own_rule: ClassVar[bool] = False
    """True if what it remembers holds for models that are the mean alone, so that no server
    optimizer goes with it."""
    responds: ClassVar[bool] = False
    """True if devices report measurements besides what they train: no privacy mechanism covers
    these."""
    absorbs: ClassVar[bool] = False
    """True if `absorb` looks at the round at all; where it does not, models need not be held one by
    one."""
    by_device: ClassVar[bool] = False
    """True if the JSON values of its memory name devices; else they name groups, if anything."""
    keeps: ClassVar[bool] = False
    """True if `closing` makes what a device keeps out of the model that it is given: a device that
    comes later then needs nothing else."""

    before: ClassVar[tuple[Verb, ...]] = ()
    """Verbs of a device that come before its training in a round, and `after` those behind it."""
    after: ClassVar[tuple[Verb, ...]] = ()

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        """Return the memory before the first round, from the bundle's initial tensors and the run's
        seed, for what the coordinator draws."""
        return ObjectiveMemory()

    def forget(
        self, context: ObjectiveMemory, device_id: str, alone: str | None
    ) -> ObjectiveMemory:
        """Return the memory without what is kept for the device, or for its own group, if it has
        one in which it is `alone`."""
        key = device_id if self.by_device else alone
        info = {k: without(value, key) for k, value in context.info.items()}
        own = f"{alone}/"
        arrays = {k: v for k, v in context.arrays.items() if alone is None or not k.startswith(own)}
        return ObjectiveMemory(arrays, info)

    def preparing(self, context: ObjectiveMemory) -> bool:
        """Return True if the next round is a preparation: nobody is grouped in it, and it does not
        count as a round of training."""
        return False

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        """Return the verbs of devices in the next round."""
        return {"": (Evaluate(), *self.training(context, work))}

    def training(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        """Return the verbs of a round after a device has evaluated the model it received."""
        return (*self.before, work.train(), *self.after)

    def closing(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        """Return the verbs of every device after the last round; its last evaluation is the one
        that counts."""
        return (Evaluate(),)

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        """Take in a round: its local models sorted by device id, the group of every device, and the
        new model of each group (roles shared and statistic). In a preparation everybody is in group
        `NEWCOMER`."""
        return context

    def received(
        self, context: ObjectiveMemory, models: Mapping[str, Tensors], key: str
    ) -> Tensors:
        """Return the tensors of role received (``received/NAME``) for devices that start from the
        model of this key."""
        return {}


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
