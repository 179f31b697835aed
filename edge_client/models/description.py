"""The model in use in words: what it is, what it is worth, and how long activities last."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from edge_client.core.offers import alone_of, is_of_offer
from edge_client.core.questions import Question
from edge_client.core.session import ModelOffer
from edge_client.core.stream import BEGIN_WINDOWS, StreamSums
from edge_client.storage.state import DeviceState
from wire.errors import ConfigError
from wire.tasks import CLASSIFICATION


@dataclass(frozen=True)
class ModelInUse:
    """The model in use of a device, as its page shows it (`ModelView`)."""

    state: DeviceState

    def is_there(self) -> bool:
        """Return True if a model is in use that can be read."""
        try:
            return self.state.current() is not None
        except ConfigError:
            return False

    def describe(self) -> list[str]:
        """Return the lines of `shoal-edge status`, or the reason why there are none."""
        try:
            return describe(self.state)
        except ConfigError as error:
            return [str(error)]

    def stretches(self) -> tuple[Question, ...]:
        """Return the long stretches that the model has answered."""
        return self.state.questions()


def describe(state: DeviceState) -> list[str]:
    """Return the lines of `shoal-edge status`.

    Raises:
        ConfigError: the state folder cannot be read.
    """
    current = state.current()
    if current is None:
        return ["model: none in use"]
    since = datetime.fromtimestamp(current.since_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"model: {current.model[:12]} of {current.name} version {current.version}, since {since}"
    ]
    if current.group:
        lines.append(f"group: {current.group}")
    session = state.load()
    alone = alone_of(session, current)
    personal = "in use" if current.personal_model else "none"
    lines.append(f"personal model: {personal}{f', {alone}' if alone else ''}")
    if current.back:
        lines.append(current.back)
    offer = session.offer
    is_of_newest = not current.back and is_of_offer(session, current)
    if offer is not None and is_of_newest and current.task == CLASSIFICATION:
        lines.append(f"held-out windows: {gain(offer)}")
    if offer is not None and offer.problem:
        lines.append(f"not taken: model {offer.model[:12]}, {offer.problem}")
    if current.task == CLASSIFICATION:
        lines.append(f"stream: {in_words(state.stream(current.bundle), len(current.classes))}")
    return lines


def gain(offer: ModelOffer) -> str:
    """Return the accuracy of the model in use beside that of the model before it.

    The standard error is that of the difference if both were right about independent windows. They
    are tested on the same windows, so it is an upper limit.
    """
    now, before = offer.evaluated, offer.before
    if not now.num_examples:
        return "none with a label"
    text = f"{now.accuracy:.1%} of {now.num_examples} right"
    if before.num_examples != now.num_examples:
        return text
    variance = sum(each.accuracy * (1 - each.accuracy) for each in (now, before))
    error = math.sqrt(variance / now.num_examples)
    points = 100 * (now.accuracy - before.accuracy)
    return f"{text}, {points:+.1f} points to the model before (standard error {100 * error:.1f})"


def in_words(sums: StreamSums, classes: int) -> str:
    """Return a description of the length of activities, from the sums."""
    if sums.stays + sums.changes < BEGIN_WINDOWS:
        return "not known yet how long activities last"
    if (windows := round(sums.activity(classes))) < 2:
        return "windows have no order, so each is answered alone"
    return f"activities last about {windows} windows"
