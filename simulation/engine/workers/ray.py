"""Workers on a Ray cluster, for fleets for which one machine is too slow.

They are actors of one thread each, one for each CPU. Data and graphs are put into the cluster's
object store once, a round's models once a round; actors of one machine read the same pages. Private
tensors stay with the driver: they travel with the plan and come back with the result, so that
nothing is missing when an actor's machine is lost. Its plans then go to the other actors, which
give the same bits.
"""

import logging
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic, sleep
from typing import Any

import numpy as np
import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from algorithms import outside
from algorithms.algorithm import Contribution
from algorithms.core.contract import exchanged
from algorithms.means.streaming import LEVELS, Branch, place_of
from simulation.engine.workers.device_host import (
    DeviceHost,
    DeviceHostSpec,
    DeviceResult,
    Models,
    Workers,
    in_one_thread,
)
from simulation.engine.workers.private_store import PrivateStore, TravellingStore
from wire.arrays.tensors import Tensors
from wire.errors import ConfigError, ShoalError
from wire.messages import Plan

log = logging.getLogger("shoal.simulation")

IN_FLIGHT = 2
"""Number of chunks that an actor has at a time, so that it need not wait for the driver."""
CHUNKS, LARGEST_CHUNK = 8, 32
"""Approximate number of chunks per actor and round, and maximum number of plans of a chunk.

Small chunks leave no actor with much work at the end of a round.
"""
LOSSES = 4
"""Number of actors lost one after the other at a chunk before it counts as the cause.

The run then ends.
"""
PATIENCE_S = 60.0
"""Seconds that a run waits for an actor if it has none; a cluster may be starting a machine."""
CONNECT_S = 5.0
LOCAL_CLUSTER, ANY_CLUSTER = "local", "any"
"""Values in place of an address.

``local`` is a cluster of this machine alone, for the time of the run. ``any`` is the cluster that
this machine is part of, or ``local`` if there is none.
"""
LOST = (RayActorError, NodeDiedError, ObjectLostError, OutOfMemoryError, WorkerCrashedError)

Ref = Any
"""A `ray.ObjectRef`."""
Task = tuple[Plan, Tensors]
"""A plan, and the private tensors of its device."""
Result = tuple[DeviceResult, Tensors | None]
"""Result of a plan, and the device's new private tensors, or None if they do not change."""


class Worker:
    """A Ray actor that carries out the plans of simulated devices.

    References come in a tuple, because Ray would otherwise fetch their objects before each call.
    """

    def __init__(self, spec: tuple[Ref]) -> None:
        self._spec, self._store = spec[0], TravellingStore()
        self._host: DeviceHost | None = None
        self._models: tuple[Ref, Models] = (None, {})

    def greet(self) -> None:
        """Answer when the actor has been started."""

    def work(self, models: tuple[Ref], tasks: Sequence[Task], level: int | None) -> list[Result]:
        """Carry out plans, one after the other, with a round's models.

        With a `level`, the plans are all of one branch of that level of the tree over the fleet
        (`algorithms.means.streaming`), and only the sum of their models is returned.
        """
        if self._host is None:
            in_one_thread()
            spec: Any = ray.get(self._spec)
            self._host, self._algorithm = (
                DeviceHost(spec, spec.make_graphs(), self._store),
                spec.algorithm,
            )
        if models[0] != self._models[0]:
            tensors: Any = ray.get(models[0])
            self._models = (models[0], tensors)
        results: list[Result] = []
        for plan, private_tensors in tasks:
            self._store.before, self._store.after = private_tensors, None
            result = self._host.carry_out(plan, self._models[1])
            results.append((result, self._store.after))
        return results if level is None else self._sum_up(results, level)

    def _sum_up(self, results: list[Result], level: int) -> list[Result]:
        trained = [result for result, _ in results if not result.problem]
        sums: dict[str, Branch] = {}
        for start in {result.model for result in trained}:
            mine = [
                Contribution(d.device_id, d.num_train, d.num_steps, start, d.tensors)
                for d in trained
                if d.model == start
            ]
            sums[start] = self._algorithm.sum_up(exchanged(self._models[1][start]), mine).branch(
                level
            )
        answers = [
            (replace(result, tensors={}, carried=result.layout), after) for result, after in results
        ]
        for at, (result, after) in enumerate(answers):
            if not result.problem:  # one whose result is read
                answers[at] = (replace(result, sums=sums), after)
                break
        return answers


@dataclass
class _Chunk:
    plans: Sequence[Plan]
    losses: int = 0


@dataclass
class _Member:
    """An actor from the driver's side."""

    actor: Any
    greeting: Ref | None
    """Reference of the greeting; None once it is answered."""
    chunks: dict[Ref, _Chunk] = field(default_factory=dict)
    """Chunks in progress or waiting at the actor, in order."""


@contextmanager
def on_ray(
    address: str, count: int, spec: DeviceHostSpec, store: PrivateStore
) -> Iterator[Workers]:
    """Yield workers on a cluster, `count` actors.

    Raises:
        ConfigError: there is no cluster at this address.
    """
    ours = not ray.is_initialized()
    if ours:
        _connect(address, count)
    workers = RayWorkers(address, count, spec, store)
    try:
        yield workers.run
    finally:
        for member in workers._members:
            ray.kill(member.actor)
        if ours:
            ray.shutdown()


class RayWorkers:
    """Workers of `count` actors, or of one for each present CPU of the cluster if it is 0."""

    def __init__(self, address: str, count: int, spec: DeviceHostSpec, store: PrivateStore) -> None:
        self._address, self._count, self._store = address, count, store
        for module in outside.modules():  # the cluster's machines do not have a user's own files
            ray.cloudpickle.register_pickle_by_value(module)
        self._spec = ray.put(spec)
        self._start = ray.remote(num_cpus=1, max_restarts=0)(Worker).remote
        self._members: list[_Member] = []
        self._why = ""
        """Reason why an actor could not be started."""

    def run(
        self, plans: Sequence[Plan], models: Models, summed: bool = False
    ) -> Iterator[DeviceResult]:
        """Yield the results of these plans.

        Raises:
            ShoalError: no actor is left, an actor cannot do its work, or actors are lost at the
                same plans again and again.
        """
        shared = (ray.put(dict(models)),)
        self._fill_up()
        size = min(LARGEST_CHUNK, max(1, len(plans) // (CHUNKS * max(1, len(self._members)))))
        level = min(LEVELS, max(0, LEVELS - (len(plans) // size).bit_length())) if summed else None
        parts: dict[int, list[Plan]] = {}
        for at, plan in enumerate(plans):  # in order, or by branches of the tree
            branch = at // size if level is None else place_of(plan.device_id) >> level
            parts.setdefault(branch, []).append(plan)
        waiting = deque(_Chunk(parts[branch]) for branch in sorted(parts))
        seen_s = monotonic()
        try:
            while waiting or any(member.chunks for member in self._members):
                self._deal(waiting, shared, level)
                if any(member.greeting is None for member in self._members):
                    seen_s = monotonic()
                elif monotonic() - seen_s > PATIENCE_S:
                    free, there = (
                        resources.get("CPU", 0.0)
                        for resources in (ray.available_resources(), ray.cluster_resources())
                    )
                    room = f"{free:g} of the cluster's {there:g} CPUs are free, one is needed"
                    raise ShoalError(
                        f"Ray at {self._address}: no worker started in {PATIENCE_S:g} s; "
                        f"{room}{self._why}"
                    )
                else:
                    self._fill_up()
                for chunk, results in self._answers(waiting):
                    for plan, (result, after) in zip(chunk.plans, results, strict=True):
                        if after is not None:
                            self._store.put(plan.device_id, plan.round, after)
                        yield replace(
                            result,
                            tensors={
                                name: np.array(value) for name, value in result.tensors.items()
                            },
                        )
        finally:
            for member in self._members:
                member.chunks.clear()

    def _fill_up(self) -> None:
        """Start the missing actors; one without room in the cluster waits for it."""
        wanted = self._count or int(ray.cluster_resources().get("CPU", 0))
        while len(self._members) < wanted:
            actor: Any = self._start((self._spec,))
            self._members.append(_Member(actor, actor.greet.remote()))

    def _deal(self, waiting: deque[_Chunk], shared: tuple[Ref], level: int | None) -> None:
        while waiting:
            free = [m for m in self._members if m.greeting is None and len(m.chunks) < IN_FLIGHT]
            if not free:
                return
            member, chunk = min(free, key=lambda m: len(m.chunks)), waiting.popleft()
            tasks = [(plan, self._store.get(plan.device_id, plan.round)) for plan in chunk.plans]
            member.chunks[member.actor.work.remote(shared, tasks, level)] = chunk

    def _answers(self, waiting: deque[_Chunk]) -> Iterator[tuple[_Chunk, list[Result]]]:
        """Yield the next chunk with results, if one is ready within a second.

        The chunks of a lost actor go back to `waiting`.
        """
        owners = {
            ref: m
            for m in self._members
            for ref in [*m.chunks, *([] if m.greeting is None else [m.greeting])]
        }
        if not owners:
            sleep(1.0)
            return
        for ref in ray.wait(list(owners), num_returns=1, timeout=1.0)[0]:
            member = owners[ref]
            try:
                results = ray.get(ref)
            except RayTaskError as error:
                cause = error.cause if isinstance(error.cause, Exception) else error
                raise ShoalError(
                    f"Ray at {self._address}: a worker failed: {type(cause).__name__}: {cause}"
                ) from error
            except LOST as error:
                self._lose(member, waiting, error)
                continue
            if ref in member.chunks:
                yield member.chunks.pop(ref), results
            else:
                member.greeting = None

    def _lose(self, member: _Member, waiting: deque[_Chunk], error: RayError) -> None:
        """Remove an actor, give its chunks back, and start another one if there is room.

        Raises:
            ShoalError: too many actors were lost at the same chunk.
        """
        chunks = list(member.chunks.values())
        if chunks:
            num_plans, number = sum(len(chunk.plans) for chunk in chunks), chunks[0].plans[0].round
            log.warning(
                "A worker on Ray was lost: round=%d plans=%d reason=%s",
                number,
                num_plans,
                type(error).__name__,
            )
            chunks[0].losses += 1
            if chunks[0].losses >= LOSSES:
                first = chunks[0].plans[0].device_id
                raise ShoalError(
                    f"Ray at {self._address}: {LOSSES} workers were lost with the same plans, from "
                    f"that of device {first} on. The last reason: {error}"
                )
        waiting.extendleft(reversed(chunks))
        self._members.remove(member)
        ray.kill(member.actor)
        if member.greeting is None:  # after a failed start, the next round tries again
            self._fill_up()
        else:
            self._why = f"; the last that was started: {str(error).strip().splitlines()[-1]}"


def _connect(address: str, count: int) -> None:
    """Start Ray on this machine, or connect to a cluster.

    Raises:
        ConfigError: there is no cluster at this address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # without it, Ray warns of a future default at every start
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address == ANY_CLUSTER:
            try:
                ray.init("auto", **quiet)
                return
            except ConnectionError:
                address = LOCAL_CLUSTER
        if address == LOCAL_CLUSTER:
            ray.init("local", num_cpus=count or None, include_dashboard=False, **quiet)
            return
        if address == "auto":
            try:
                ray.init("auto", **quiet)
                return
            except ConnectionError:
                raise ConfigError(
                    "cluster 'auto': this machine is not part of a Ray cluster. Start one (`ray "
                    "start`), or set cluster to an address, local or any."
                ) from None
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), CONNECT_S).close()
        ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise ConfigError(f"cluster {address!r} cannot be used: {error}") from None
