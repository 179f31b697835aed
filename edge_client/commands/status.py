"""`shoal-edge status`: the model in use, and how long this device's activities last."""

from argparse import Namespace
from datetime import UTC, datetime

from edge_client.core.stream import BEGIN_WINDOWS, StreamSums
from edge_client.storage.state import DeviceState
from wire.tasks import CLASSIFICATION


def status(arguments: Namespace) -> int:
    """Print the status of a state folder; return 0, or 1 if no model is in use.

    Raises:
        ConfigError: the folder cannot be read.
    """
    state = DeviceState(arguments.state, read_only=True)
    current = state.current()
    if current is None:
        print("model: none in use")
        return 1
    since = datetime.fromtimestamp(current.since_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    print(f"model: {current.model[:12]} of {current.name} version {current.version}, since {since}")
    if current.task == CLASSIFICATION:
        print(f"stream: {in_words(state.stream(current.bundle), len(current.classes))}")
    return 0


def in_words(sums: StreamSums, classes: int) -> str:
    """Return what the sums say of the length of activities."""
    if sums.stays + sums.changes < BEGIN_WINDOWS:
        return "not known yet how long activities last"
    if (windows := round(sums.activity(classes))) < 2:
        return "windows have no order, so each is answered alone"
    return f"activities last about {windows} windows"
