"""Aggregation of a round whose sums helpers have opened: the aggregator learns the sums alone.

Devices tell their groups without a sum. The next aggregation takes them in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from aggregator.aggregation.apply import changed_groups, rate_noted, round_notes
from aggregator.aggregation.stored import groups_in, load_state, store_state, work_of
from aggregator.core.sums import SecretSum, SumMismatch, opened, total_of
from aggregator.fleet.desired import sum_verbs
from aggregator.fleet.events import Aggregated, SumFailed
from aggregator.fleet.plan import round_seed
from aggregator.fleet.records import Campaign, Member
from aggregator.ports import Blobs, Clock
from aggregator.view.round_record import SUMMED, SURVEYED
from algorithms.algorithm import Algorithm, State
from algorithms.sums import (
    GroupSum,
    after_exchanges,
    after_telling,
    apply_sums,
    exchange_of,
    measured_in,
    survey_notes,
    tree_of,
)
from wire.arrays.tensors import OWN_FILES, Tensors
from wire.codec import decode, decode_update, encode
from wire.secret.messages import MaskSums
from wire.secret.payloads import masked_values, read_sums


def masks_blob(answer: MaskSums, text: bytes) -> bytes:
    """Return the blob of a helper's answer, with the bytes of its sums of masks."""
    return encode(answer) + b"\n" + text


def aggregate_sums(
    campaign: Campaign, algorithm: Algorithm, blobs: Blobs, clock: Clock
) -> Aggregated | SumFailed:
    """Apply the algorithm to the opened sums of a round.

    Raises:
        BlobLost: an update, a helper's sums, a model or the memory can no longer be read.
        StorageFailed: a blob cannot be read or written.
    """
    settings, groups = campaign.settings, dict[str, GroupSum]()
    for key, secret in campaign.sums.items():
        try:
            groups[key] = GroupSum(opened_numbers(campaign, secret, blobs), secret.devices)
        except SumMismatch as error:
            return SumFailed(
                at_s=clock(),
                campaign=campaign.name,
                round=campaign.round,
                key=key,
                problem=str(error),
            )
    # rounds whose models were given up have spent privacy too
    state = replace(load_state(campaign.version, blobs), rounds=campaign.trained)
    notes, accuracy = dict[str, Any](), None
    if algorithm.grouping.surveys:
        nodes = {d: m.node for d, m in sorted(campaign.members.items()) if m.node is not None}
        state = after_telling(state, nodes, settings.min_sum)
    if campaign.preparing:
        exchanges = {key: exchange_of(sum_verbs(campaign, key)) for key in groups}
        opened_sums = {key: (exchanges[key], group) for key, group in groups.items()}
        state = after_exchanges(state, opened_sums, settings.min_sum)
        notes = {SURVEYED: survey_notes(state)}
    else:
        seed = round_seed(settings.seed, campaign.round)
        state, grouped = apply_sums(algorithm, state, groups, seed, work_of(settings))
        means = measured_in(list(groups.values()))
        count = sum(len(group.device_ids) for group in groups.values())
        accuracy = means.get("accuracy")
        notes = round_notes(state, grouped) | rate_noted(settings, campaign.version.programs)
        notes |= {SUMMED: {"devices": count} | means | {"groups": _by_group(state, groups)}}
    stored = store_state(campaign.next_settings, algorithm, state, blobs)
    return Aggregated(
        at_s=clock(),
        campaign=campaign.name,
        round=campaign.round,
        version=stored.version(campaign.round, algorithm.grouping.start(state.memory, "")),
        groups=changed_groups(campaign, groups_in(state, algorithm.grouping)),
        nodes={
            device_id: node
            for device_id, node in sorted(tree_of(state).places.items())
            if campaign.members.get(device_id, Member()).node != node
        },
        preparing=stored.preparing,
        notes=notes | _left_out(campaign, groups),
        accuracy=accuracy,
    )


def _left_out(campaign: Campaign, sums: Mapping[str, GroupSum]) -> dict[str, Any]:
    """Return the note about devices that have answered and are in no sum; empty without any."""
    summed = {device_id for group in sums.values() for device_id in group.device_ids}
    in_cells = campaign.version.has_cells
    reason = "its cell was not whole" if in_cells else "a helper could not use its share"
    reasons = dict.fromkeys(sorted(set(campaign.updates) - summed), reason)
    return {"left_out": reasons} if reasons else {}


def _by_group(state: State, sums: Mapping[str, GroupSum]) -> dict[str, dict[str, float]]:
    """Return the mean accuracy and loss of each group that has an opened sum."""
    groups: dict[str, list[GroupSum]] = {}
    for each in sums.values():
        groups.setdefault(state.memory.membership[each.device_ids[0]], []).append(each)
    return {group: measured_in(each) for group, each in groups.items()}


def opened_numbers(campaign: Campaign, secret: SecretSum, blobs: Blobs) -> Tensors:
    """Return the sums float64 (n,) of the devices' numbers, by part.

    Raises:
        SumMismatch: helpers contradict each other.
    """
    question = secret.question

    def uploads() -> Iterator[Tensors]:
        for device_id in secret.devices:
            blob = campaign.updates[device_id].blob
            message, tensors = decode_update(blobs.get(blob), OWN_FILES)
            assert message.share is not None
            yield masked_values(message.share, tensors, question)

    answers = []
    for blob in secret.masks.values():
        head, _, text = blobs.get(blob).partition(b"\n")
        answer: MaskSums = decode(head, MaskSums)
        answers.append((answer, read_sums(question, answer.helper, text)))
    return opened(question, total_of(question, uploads()), answers)
