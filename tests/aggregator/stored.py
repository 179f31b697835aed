"""Puts a fleet into a database without a service."""

from contextlib import closing

from aggregator.fleet.events import Event
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.step import take_in
from aggregator.storage.fleet_store import FleetStore


def store_events(url: str, *events: Event) -> None:
    """Have these events happen to the fleet of a database."""
    with closing(FleetStore(url)) as store:
        before = store.load()
        turn = Turn(before)
        for event in events:
            take_in(turn, event)
        store.commit(before, turn.fleet(), turn.changed, events)
