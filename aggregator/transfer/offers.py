"""The blobs that devices may fetch, and those that are still needed. Pure."""

from aggregator.core.state import RunState


def needed(state: RunState) -> set[str]:
    """The digests of the blobs that a run's state names, and that are of use yet: the updates of a
    run that is over are not."""
    earlier = {
        digest for version in state.history for digest in (*version.models.values(), version.memory)
    }
    counted = state.received.values() if state.phase != "finished" else ()
    updates = {received.blob for received in counted} | {
        told.blob for told in state.inputs.values()
    }
    return offered(state) | earlier | {state.memory} | updates


def offered(state: RunState) -> set[str]:
    """The digests of the blobs that devices may fetch in this state."""
    working = {
        flight.model
        for flight in (*state.flights.values(), *state.placing.values(), *state.closings.values())
    }
    return {state.settings.bundle, *state.models.values()} | working
