"""Events of an operator's orders that need an algorithm: start, new settings, return to a round.

New models and memories are stored when a function returns.
"""

from dataclasses import replace

from immutables import Map

from aggregator.aggregation.inherit import TrainedModels, begin_from
from aggregator.aggregation.stored import groups_in, is_preparing, programs_of, store_state
from aggregator.core.settings import RunSettings
from aggregator.fleet.events import Configured, RolledBack, Started
from aggregator.fleet.records import Campaign, Member
from aggregator.ports import Blobs
from algorithms.algorithm import Algorithm, decode_memory
from algorithms.core.contract import Probe
from wire.arrays.tensors import Tensors


def start_campaign(
    settings: RunSettings,
    algorithm: Algorithm,
    probe: Probe,
    initial: Tensors,
    blobs: Blobs,
    at_s: float,
    source: TrainedModels | None = None,
) -> Started:
    """Return the event that starts a campaign from `initial` tensors, or from models of `source`.

    With a `source`, the campaign's members are in the groups of the source.

    Raises:
        ConfigError: the algorithm's choices do not fit the bundle.
        StorageFailed: the models cannot be stored.
    """
    models, groups = dict[str, Tensors](), dict[str, str]()
    if source is not None:
        initial, models, groups = begin_from(source, initial, algorithm)
    state = algorithm.begin(initial, probe, settings.seed)
    if not is_preparing(algorithm, state, settings):
        state = replace(state, models={**state.models, **models}, starts=groups)
    stored = store_state(settings, algorithm, state, blobs)
    campaign = Campaign(
        settings=settings,
        next_settings=settings,
        version=stored.version(0, algorithm.grouping.start(state.memory, "")),
        preparing=stored.preparing,
        members=Map({device_id: Member(group=group) for device_id, group in state.starts.items()}),
    )
    return Started(at_s=at_s, campaign=settings.name, record=campaign)


def configured(
    campaign: Campaign, settings: RunSettings, algorithm: Algorithm, blobs: Blobs, at_s: float
) -> Configured:
    """Return the event that gives a campaign these settings from the next round on.

    Raises:
        BlobLost, StorageFailed: the models cannot be read.
    """
    programs = programs_of(campaign.version, settings, algorithm, blobs, campaign.trained)
    return Configured(at_s=at_s, campaign=campaign.name, settings=settings, programs=programs)


def rolled_back(
    campaign: Campaign, to: int, algorithm: Algorithm, blobs: Blobs, at_s: float
) -> RolledBack:
    """Return the event that returns a campaign to the present models, or to earlier ones.

    `to`: the round of the models. The groups are those of that round. The verbs follow from the
    current settings.

    Raises:
        KeyError: the models of that round are no longer stored.
        BlobLost, StorageFailed: the models cannot be read.
    """
    version = {v.round: v for v in reversed(campaign.versions)}[to]
    settings, trained = campaign.next_settings, campaign.trained
    return RolledBack(
        at_s=at_s,
        campaign=campaign.name,
        to=to,
        groups=groups_in(decode_memory(blobs.get(version.memory), {}), algorithm.grouping),
        programs=programs_of(version, settings, algorithm, blobs, trained),
    )
