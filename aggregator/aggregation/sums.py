"""Aggregation of a round whose sum helpers have opened: the aggregator learns the sum alone."""

from collections.abc import Iterator

from aggregator.aggregation.apply import changed_groups, rate_noted, round_notes
from aggregator.aggregation.stored import groups_in, load_state, store_state, work_of
from aggregator.core.sums import SumMismatch, opened, total_of
from aggregator.fleet.events import Aggregated, SumFailed
from aggregator.fleet.plan import round_seed
from aggregator.fleet.records import Campaign
from aggregator.fleet.rounds import counted_updates
from aggregator.ports import Blobs, Clock
from aggregator.view.round_record import SUMMED
from algorithms.algorithm import Algorithm
from algorithms.sums import GroupSum, apply_sums, measured_in
from wire.arrays.tensors import OWN_FILES, Tensors
from wire.codec import decode, decode_update, encode
from wire.secret.messages import MaskSums
from wire.secret.payloads import masked_values, read_sums
from wire.secret.question import SumQuestion


def masks_blob(answer: MaskSums, text: bytes) -> bytes:
    """Return the blob of a helper's answer, with the bytes of its sums of masks."""
    return encode(answer) + b"\n" + text


def aggregate_sum(
    campaign: Campaign, algorithm: Algorithm, blobs: Blobs, clock: Clock
) -> Aggregated | SumFailed:
    """Apply the algorithm to the opened sum of a round.

    Raises:
        BlobLost: an update, a helper's sums, a model or the memory can no longer be read.
        StorageFailed: a blob cannot be read or written.
    """
    secret, settings = campaign.sum, campaign.settings
    assert secret is not None
    try:
        sums = _opened(campaign, secret.question, blobs)
    except SumMismatch as error:
        return SumFailed(
            at_s=clock(), campaign=campaign.name, round=campaign.round, problem=str(error)
        )
    seed, last = round_seed(settings.seed, campaign.round), load_state(campaign.version, blobs)
    start = algorithm.grouping.start(last.memory, secret.devices[0])
    groups = {start: GroupSum(sums, secret.devices)}
    means = measured_in(list(groups.values()))
    state, grouped = apply_sums(algorithm, last, groups, seed, work_of(settings))
    stored = store_state(campaign.next_settings, algorithm, state, blobs)
    return Aggregated(
        at_s=clock(),
        campaign=campaign.name,
        round=campaign.round,
        version=stored.version(campaign.round, algorithm.grouping.start(state.memory, "")),
        groups=changed_groups(campaign, groups_in(state, algorithm.grouping)),
        notes=round_notes(state, grouped)
        | rate_noted(settings, campaign.version.programs)
        | {SUMMED: {"devices": len(secret.devices)} | means},
        accuracy=means["accuracy"],
    )


def _opened(campaign: Campaign, question: SumQuestion, blobs: Blobs) -> Tensors:
    """Return the sums float64 (n,) of the devices' numbers, by part.

    Raises:
        SumMismatch: helpers contradict each other.
    """
    assert campaign.sum is not None

    def uploads() -> Iterator[Tensors]:
        for update in counted_updates(campaign).values():
            message, tensors = decode_update(blobs.get(update.blob), OWN_FILES)
            assert message.share is not None
            yield masked_values(message.share, tensors, question)

    answers = []
    for blob in campaign.sum.masks.values():
        head, _, text = blobs.get(blob).partition(b"\n")
        answer: MaskSums = decode(head, MaskSums)
        answers.append((answer, read_sums(question, answer.helper, text)))
    return opened(question, total_of(question, uploads()), answers)
