"""Contract of a store of a fleet, in memory and on every database; subclassed once per kind."""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pytest
import sqlalchemy as sql
from msgspec.structs import replace

from aggregator.core.steps import Step
from aggregator.fleet import events as e
from aggregator.fleet.records import Ban, Fleet
from aggregator.ports import StorageFailed, Store
from aggregator.storage import fleet_store
from aggregator.storage.engine import make_engine
from aggregator.storage.fleet_store import FleetStore, has_device, load_fleet
from aggregator.storage.schema import METADATA
from aggregator.view.round_record import RoundRecord
from tests.fleet.histories import history, lived
from tests.fleet.parts import underived, untimed
from tests.fleet.world import World
from wire.messages import Metrics

UNKNOWN = "the fleet has to be read before it is written"


def record(number: int, accuracy: int = 1, views: str = "") -> RoundRecord:
    """The record of a round."""
    return RoundRecord(
        number,
        "training",
        0.0,
        1.0,
        {"d": Metrics(2, 1.0, accuracy)},
        Metrics(),
        {"d": "0"},
        10,
        20,
        {"p": 0.5},
        views,
    )


def execute(url: str, statement: str, **values: Any) -> Any:
    """Execute a statement in a database, beside the store."""
    engine = make_engine(url)
    with engine.begin() as connection:
        result = connection.execute(sql.text(statement), values)
        rows = result.all() if result.returns_rows else result.rowcount
    engine.dispose()
    return rows


def everything(url: str) -> dict[str, list[Any]]:
    """All rows of a database, by table."""
    engine = make_engine(url)
    with engine.connect() as connection:
        rows = {
            t.name: list(map(tuple, connection.execute(sql.select(t))))
            for t in METADATA.sorted_tables
        }
    engine.dispose()
    return rows


@contextmanager
def written(store: FleetStore) -> Iterator[dict[str, int]]:
    """Count the rows that are written or deleted, by table."""
    counts: dict[str, int] = {}

    def count(_c: Any, _cursor: Any, statement: str, values: Any, _x: Any, many: bool) -> None:
        words = statement.split()
        if words[0] in ("INSERT", "UPDATE", "DELETE"):
            table = words[1] if words[0] == "UPDATE" else words[2]
            counts[table] = counts.get(table, 0) + (len(values) if many else 1)

    sql.event.listen(store._engine, "before_cursor_execute", count)
    yield counts
    sql.event.remove(store._engine, "before_cursor_execute", count)


def rich(store: Store) -> World:
    """A fleet with everything in it that is stored."""
    world = World(store)
    for device_id in "abcd":
        world.check_in(device_id)
    world.clients["d"].num_train = 0
    world.check_in("d")
    world.start("one", rounds=2, min_devices=2, surveys=True, keep_models=2)
    world.settle()
    world.start("two", rounds=9, min_devices=2, steps=(Step(0.5), Step(1.0)), keeps=True)
    world.carry_out()
    world.work("a")
    world.feed(e.Tagged(at_s=world.now_s, device_id="b", tags=("canary",)))
    world.feed(e.Banned(at_s=world.now_s, device_id="e", ban=Ban(1.0, "stolen")))
    world.ring()
    return world


class StoreContract:
    """Contract of every store."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        raise NotImplementedError

    def test_a_new_store_has_a_new_fleet(self, store: Store) -> None:
        assert store.load() == Fleet()
        assert store.rounds("one") == []
        assert store.views("one") == set()

    def test_a_fleet_is_loaded_as_it_was(self, store: Store) -> None:
        fleet = rich(store).fleet
        assert untimed(store.load()) == untimed(fleet)

    def test_records_are_replaced_by_round_and_ordered(self, store: Store) -> None:
        fleet = store.load()

        def put(*records: tuple[str, RoundRecord]) -> None:
            store.commit(fleet, fleet, set(), records=records)

        put(("one", record(2)), ("one", record(1)), ("two", record(1, accuracy=0)))
        put(("one", record(2, accuracy=0)))
        assert store.rounds("one") == [record(1), record(2, accuracy=0)]
        assert store.rounds("two") == [record(1, accuracy=0)]
        assert store.rounds("one", after=2**40) == []
        assert store.rounds("one", until=2**40) == store.rounds("one")
        assert store.rounds("one", after=1) == [record(2, accuracy=0)]
        assert store.rounds("one", after=2) == []
        assert store.rounds("one", until=1) == [record(1)]

    def test_views_are_those_of_a_campaign(self, store: Store) -> None:
        fleet = store.load()
        records = [("one", record(1, views="a" * 64)), ("one", record(2)), ("two", record(1))]
        store.commit(fleet, fleet, set(), records=records)
        assert (store.views("one"), store.views("two")) == ({"a" * 64}, set())
        store.commit(fleet, fleet, set(), records=[("one", record(1))])
        assert store.views("one") == set()

    def test_what_can_be_written_is_checked_without_a_trace(self, store: Store) -> None:
        fleet = rich(store).fleet
        store.check()
        assert untimed(store.load()) == untimed(fleet)


class FleetStoreContract(StoreContract):
    """Contract of every database."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def store(self, url: str) -> Iterator[FleetStore]:
        with closing(FleetStore(url)) as store:
            yield store

    def test_a_new_database_has_nothing(self, store: FleetStore, url: str) -> None:
        assert list(store.journal()) == []
        assert (load_fleet(url), has_device(url, "a")) == (None, False)

    def test_a_fleet_comes_back_as_it_was(self, store: FleetStore, url: str) -> None:
        fleet = rich(store).fleet
        assert fleet.releases
        assert fleet.campaigns["two"].updates
        assert fleet.campaigns["one"].members["d"].survey is not None
        assert store.load() == untimed(fleet)
        with closing(FleetStore(url)) as other:
            assert other.load() == untimed(fleet)
        assert load_fleet(url) == untimed(fleet)
        assert (has_device(url, "a"), has_device(url, "z")) == (True, False)

    @pytest.mark.parametrize("seed", range(3))
    def test_any_history_comes_back(self, store: FleetStore, seed: int) -> None:
        world = lived(history(random.Random(seed), 100), World(store))
        assert underived(store.load()) == underived(world.fleet)

    def test_what_devices_have_in_common_is_in_memory_once(self, store: FleetStore) -> None:
        world = World(store)
        for device_id in "abc":
            world.check_in(device_id)
        world.start("one", rounds=2, min_devices=3)
        devices = list(store.load().devices.values())
        works = [device.assignment for device in devices]
        assert len({id(work.verbs) for work in works if work is not None}) == 1
        assert len({id(work.model) for work in works if work is not None}) == 1
        assert len({id(device.facts.encodings) for device in devices if device.facts}) == 1

    def test_a_commit_writes_the_rows_that_changed(self, store: FleetStore) -> None:
        world = World(store)
        for number in range(50):
            world.check_in(f"d{number}")
        world.start("one", rounds=2, min_devices=3, cohort=3)
        world.carry_out()
        device_id = next(d for d, device in world.fleet.devices.items() if device.assignment)
        with written(store) as rows:
            world.work(device_id)
        parts = rows.pop("campaign_parts", 0)
        assert parts <= 1, "no settings, no models"
        assert rows == {"fleet": 1, "device_records": 1, "members": 1, "journal": 2}
        with written(store) as rows:
            world.leave("d7" if device_id != "d7" else "d8")
        assert rows == {"fleet": 1, "device_records": 1, "journal": 2}

    def test_only_timers_of_devices_are_not_written(self, store: FleetStore) -> None:
        world = World(store)
        world.check_in("a")
        before = world.fleet
        device = replace(before.devices["a"], wake_s=7.0)
        with written(store) as rows:
            store.commit(before, replace(before, devices=before.devices.set("a", device)), {"a"})
        assert "device_records" not in rows

    def test_what_is_gone_is_deleted(self, store: FleetStore, url: str) -> None:
        world = rich(store)
        world.leave("a")
        world.feed(e.Forgotten(at_s=world.now_s, device_id="a"))
        assert set(store.load().devices) == set(world.fleet.devices)
        before = world.fleet
        after = replace(
            before,
            campaigns={"two": before.campaigns["two"]},
            rollouts=(),
            releases={},
            devices=before.devices.delete("b"),
        )
        store.commit(before, after, {"b"})
        loaded = store.load()
        assert ("b" in loaded.devices, loaded.rollouts, loaded.releases) == (False, (), {})
        assert loaded.campaigns == after.campaigns
        assert {row[0] for row in everything(url)["campaign_parts"]} == {"two"}

    def test_nothing_is_written_before_it_was_read(self, store: FleetStore, url: str) -> None:
        with pytest.raises(StorageFailed, match=UNKNOWN):
            store.commit(Fleet(), Fleet(serial=5), set())
        assert store.load() == Fleet()
        store.commit(Fleet(), Fleet(serial=5), set())
        assert store.load().serial == 5

    def test_a_store_does_not_write_after_a_commit_that_it_does_not_know(
        self, store: FleetStore, url: str
    ) -> None:
        with closing(FleetStore(url)) as other:
            for first in (True, False):
                before = store.load()
                assert other.load() == before
                after = replace(before, serial=before.serial + 1)
                store.commit(before, after, set())
                for _ in range(2):
                    with pytest.raises(StorageFailed, match=UNKNOWN):
                        other.commit(before, replace(before, serial=99), set())
                assert other.load() == after, f"the first: {first}"

    def test_a_fence_is_in_every_transaction_that_writes(self, store: FleetStore, url: str) -> None:
        fleet = rich(store).fleet
        lost = False

        def fence(connection: sql.Connection) -> None:
            assert connection.in_transaction()
            if lost:
                raise StorageFailed("another service has the fleet")

        with closing(FleetStore(url, fence)) as fenced:
            before = fenced.load()
            after = replace(before, serial=before.serial + 1)
            fenced.commit(before, after, set())
            lost, rows = True, everything(url)
            for write in (lambda: fenced.commit(after, Fleet(), {*fleet.devices}), fenced.check):
                with pytest.raises(StorageFailed, match="another service has the fleet"):
                    write()
            assert everything(url) == rows
            assert fenced.load() == after, "it may still be read"

    def test_the_journal_has_the_events_of_the_last_commits(
        self, store: FleetStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fleet_store, "JOURNALLED", 3)
        world = World(store)
        for device_id in "abcde":
            world.check_in(device_id)
        told = [(n, msgspec.json.decode(payload)) for n, payload in store.journal()]
        assert [(n, [event["device_id"] for event in events]) for n, events in told] == [
            (3, ["c"]),
            (4, ["d"]),
            (5, ["e"]),
        ]
        assert told[0][1][0]["type"] == "CheckedIn"

    def test_nothing_of_a_forgotten_device_is_left(self, store: FleetStore, url: str) -> None:
        world = World(store)
        for device_id in ("secret-7", "secret-71", "b"):
            world.check_in(device_id)
        world.start("one", rounds=2, min_devices=2, keep_models=2)
        world.settle()
        assert "secret-7'" in repr(everything(url)).replace('"', "'")
        world.feed(e.Forgotten(at_s=world.now_s, device_id="secret-7"))
        left = repr(everything(url)).replace('"', "'")
        assert "secret-7'" not in left
        assert "secret-71'" in left
        store.scrub()
        assert set(store.load().devices) == {"secret-71", "b"}

    @pytest.mark.parametrize(
        ("statement", "problem"),
        [
            ("UPDATE fleet SET record = :cut", "the fleet's numbers: the row cannot be read: "),
            (
                "UPDATE device_records SET record = :cut WHERE device_id = 'b'",
                "device 'b': the row cannot be read: Input data was truncated",
            ),
            (
                "UPDATE device_records SET record = :other WHERE device_id = 'b'",
                "device 'b': the row cannot be read: Expected `bool`, got `int` - at `\\$.online`",
            ),
            (
                "UPDATE members SET member = :cut WHERE campaign = 'one' AND device_id = 'a'",
                "campaign 'one', device 'a': the row cannot be read",
            ),
            (
                "UPDATE members SET received = :cut WHERE campaign = 'two' AND device_id = 'a'",
                "campaign 'two', device 'a': the row cannot be read",
            ),
            (
                "UPDATE campaign_parts SET record = :cut WHERE campaign = 'two' AND part = "
                "'version'",
                "campaign 'two', part 'version': the row cannot be read",
            ),
            (
                "UPDATE campaign_parts SET record = :other WHERE campaign = 'two' AND part = "
                "'version'",
                "campaign 'two': the row cannot be read: Object missing required field .* - at "
                "`\\$.version`",
            ),
            (
                "DELETE FROM campaign_parts WHERE campaign = 'two' AND part = 'settings'",
                "campaign 'two': the row cannot be read: Object missing required field `settings`",
            ),
            (
                "UPDATE campaign_parts SET campaign = 'three' WHERE campaign = 'two' AND part = "
                "'settings'",
                "campaign 'three', part 'settings': the row cannot be read: the fleet does not "
                "name this campaign",
            ),
            ("UPDATE releases SET record = :cut WHERE number = 1", "release 1: the row cannot be"),
            (
                "DELETE FROM releases WHERE number = 1",
                "rollout of campaign 'one': the row of its release 1 is missing",
            ),
            ("UPDATE rollouts SET record = :cut", "rollout 0: the row cannot be read"),
        ],
    )
    def test_a_damaged_row_is_named(
        self, store: FleetStore, url: str, statement: str, problem: str
    ) -> None:
        rich(store)
        values = {"cut": b'{"', "other": b'{"online":7}'}
        named = {key: value for key, value in values.items() if f":{key}" in statement}
        assert execute(url, statement, **named) >= 1
        for read in (store.load, lambda: load_fleet(url)):
            with pytest.raises(
                StorageFailed,
                match=f"database .*: {problem}.*; the file is damaged: .* `shoal rest",
            ):
                read()
        with closing(FleetStore(url)) as other:
            with pytest.raises(StorageFailed):
                other.load()
            with pytest.raises(StorageFailed, match=UNKNOWN):
                other.commit(Fleet(), Fleet(), set())

    def test_a_damaged_record_of_a_round_is_named(self, store: FleetStore, url: str) -> None:
        fleet = store.load()
        store.commit(fleet, fleet, set(), records=[("one", record(1))])
        execute(url, "UPDATE round_records SET record = :cut", cut=b"{")
        with pytest.raises(
            StorageFailed, match="campaign 'one', record of round 1: the row cannot be read"
        ):
            store.rounds("one")
