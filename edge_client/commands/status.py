"""`shoal-edge status`: the model in use, what it is worth, and how long activities last."""

from argparse import Namespace

from edge_client.models.description import describe
from edge_client.storage.state import DeviceState


def status(arguments: Namespace) -> int:
    """Print the status of a state folder; return 0, or 1 if no model is in use.

    Raises:
        ConfigError: the folder cannot be read.
    """
    state = DeviceState(arguments.state, read_only=True)
    print("\n".join(describe(state)))
    return 0 if state.current() is not None else 1
