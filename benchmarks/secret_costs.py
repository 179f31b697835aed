"""Costs of a secret sum beside Flower's SecAgg+: ``python -m benchmarks.secret_costs --flower
PYTHON``.

A tenth of the devices drops out: in Shoal they do not answer; in Flower they send no masked numbers
after they have shared their keys, which is the case that its protocol is made for. PYTHON is an
interpreter that has flwr (`benchmarks.flower_secagg`). All times are of the processor, of one
process in which messages are passed as bytes; those of devices and helpers include reading and
writing their messages. No network, training or download of a model is in any of the numbers.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from aggregator.core.sums import opened, question_of, total_of
from benchmarks.results.report import describe_machine, keep
from edge_client.core.sums import SecretPolicy, answer
from helper.core.ledger import Ledger
from helper.core.sums import Rules, agreement, all_agree, check_set, sum_masks
from wire.codec import decode, decode_update, encode, encode_update
from wire.identity.certificates import key_digest, new_tls_key, read_public_key, write_public_key
from wire.identity.keys import new_key
from wire.identity.signed import Signer, Verifier, vouch
from wire.messages import Metrics, Update
from wire.secret.fixed import FixedPoint
from wire.secret.messages import Agreement, Agreements, Answer, MaskSums, SumRequest, set_digest
from wire.secret.payloads import (
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    masked_values,
    read_sums,
    seal_sums,
    unseal_sums,
    upload_of,
)
from wire.secret.question import Part, SumQuestion

OUT = Path(__file__).parent / "results" / "secret_costs.json"
CELLS = ((45_000, 20), (45_000, 200), (1_000_000, 20), (1_000_000, 200))
"""Numbers of parameters and devices."""
SHARES = {20: (11, 6), 200: (21, 11)}
"""Flower's `num_shares` and `reconstruction_threshold`, by number of devices."""
HELPERS, MIN_SUM, CLIP, FLEET, VALID_S = 3, 5, 0.25, "costs", 1e5
T = TypeVar("T")
P = ParamSpec("P")


class Stopwatch:
    """Seconds of the processor that calls have taken, all of them together."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, call: Callable[P, T], *words: P.args, **options: P.kwargs) -> T:
        """Return the result of a call, whose time is added."""
        began_s = time.process_time()
        result = call(*words, **options)
        self.seconds += time.process_time() - began_s
        return result


def measure(parameters: int, devices: int) -> dict[str, Any]:
    """Return the costs of one secret sum in which a tenth of the devices does not answer."""
    draws = np.random.default_rng(1)
    root, service = new_key(), new_key()
    now_s = time.time()
    sign = Signer(service, vouch(root, FLEET, service.public_key(), now_s + VALID_S))
    keys = [new_tls_key() for _ in range(HELPERS)]
    names = tuple(key_digest(key.public_key()) for key in keys)
    aggregator_key = new_tls_key()
    cohort = {f"d{number}": new_tls_key() for number in range(devices)}
    roster = {device: key.public_key() for device, key in cohort.items()}
    policy = SecretPolicy([key.public_key() for key in keys], MIN_SUM)
    parts = {"change/all": Part(parameters, CLIP)}
    question = question_of("a" * 64, parts, devices, MIN_SUM, names, now_s + VALID_S)
    plan = encode(question)
    devices_watch, aggregator, helpers = Stopwatch(), Stopwatch(), Stopwatch()

    expected = np.zeros(parameters, question.fixed.dtype)
    sent: list[bytes] = []
    for device in list(cohort)[devices // 10 :]:
        numbers = {"change/all": draws.uniform(-CLIP, CLIP, parameters).astype(np.float32)}
        drawn: list[bytes] = []

        def draw(count: int, drawn: list[bytes] = drawn) -> bytes:
            drawn.append(os.urandom(count))
            return drawn[-1]

        def respond(
            device: str = device,
            numbers: dict[str, Any] = numbers,
            draw: Callable[[int], bytes] = draw,
        ) -> bytes:
            received: SumQuestion = decode(plan, SumQuestion)
            share, values = answer(received, numbers, device, policy, draw)
            signed, tensors = upload_of(share, values, cohort[device])
            none = Metrics()
            update = Update("run", 1, 1, 0, device, "b" * 64, 0, 0, none, none, share=signed)
            return encode_update(update, tensors)

        sent.append(devices_watch(respond))
        uniform = np.frombuffer(drawn[0], "<u4") / 2.0**32
        expected += question.fixed.encode(numbers["change/all"], CLIP, uniform)

    def receive() -> tuple[Any, Any]:
        shares, uploads = [], []
        for payload in sent:
            update, tensors = decode_update(payload)
            assert update.share is not None
            uploads.append(masked_values(update.share, tensors, question))
            shares.append((update.share.share, update.share.signature))
        return tuple(shares), total_of(question, uploads)

    shares, total = aggregator(receive)

    def request_of(agreements: Agreements = ()) -> bytes:
        request = SumRequest(
            question,
            set_digest(share for share, _ in shares),
            tuple(write_public_key(key.public_key()) for key in keys),
            write_public_key(aggregator_key.public_key()),
            agreements,
        )
        return encode_request(request, shares, sign)

    ledgers = [Ledger() for _ in keys]
    verifiers = [Verifier(FLEET, (root.public_key(),)) for _ in keys]

    def help_with(number: int, payload: bytes) -> bytes:
        request, received = decode_request(payload, verifiers[number], now_s)
        rules = Rules(keys[number], roster, MIN_SUM)
        members = check_set(request, received, ledgers[number], rules)
        if members is not None:
            ledgers[number] = ledgers[number].after(question.digest, request.set, members)
        if not all_agree(request, rules):
            return encode_answer(agreement(request, rules), keys[number])
        digests, sums = sum_masks(request, received, rules)
        sealed = seal_sums(sums, read_public_key(request.seal_to), request.set)
        return encode_answer(digests, keys[number], sealed)

    def read(replies: Sequence[bytes]) -> list[tuple[Answer, str, bytes]]:
        return [decode_answer(r, key.public_key()) for r, key in zip(replies, keys, strict=True)]

    bytes_in = bytes_out = 0
    agreements: Agreements = ()
    answers: list[tuple[Answer, str, bytes]] = []
    for _ in range(2):  # helpers agree to the set, then they open it
        payload = aggregator(request_of, agreements)
        replies = [helpers(help_with, number, payload) for number in range(HELPERS)]
        bytes_in += HELPERS * len(payload)
        bytes_out += sum(map(len, replies))
        answers = aggregator(read, replies)
        agreements = tuple(
            (a, signature) for a, signature, _ in answers if isinstance(a, Agreement)
        )

    def open_sum() -> Any:
        pairs = []
        for message, _, sealed in answers:
            assert isinstance(message, MaskSums)
            text = unseal_sums(sealed, aggregator_key, message.set)
            pairs.append((message, read_sums(question, message.helper, text)))
        return opened(question, total, pairs)

    result = aggregator(open_sum)["change/all"]
    np.testing.assert_array_equal(result, question.fixed.decode(expected, CLIP))
    return {
        "exchanges": 1,
        "device_up": sum(map(len, sent)) / len(sent),
        "device_down": len(plan),
        "device_s": devices_watch.seconds / len(sent),
        "server_s": aggregator.seconds,
        "helper_s": helpers.seconds / HELPERS,
        "helper_in": bytes_in / HELPERS,
        "helper_out": bytes_out / HELPERS,
        "bits": question.bits,
    }


def flower(python: Path, parameters: int, devices: int) -> dict[str, Any]:
    """Return the costs of Flower's SecAgg+, measured in its own environment."""
    words = map(str, (parameters, devices, *SHARES[devices]))
    command = [str(python), "-m", "benchmarks.flower_secagg", *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    root = Path(__file__).parents[1]
    process = subprocess.run(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    costs: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return costs


def size(num_bytes: float) -> str:
    """Return a number of bytes for people."""
    if num_bytes >= 1e6:
        return f"{num_bytes / 1e6:.2f} MB"
    return f"{num_bytes / 1e3:.1f} KB"


def duration(seconds: float) -> str:
    """Return a duration for people."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def text(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    rows = results["rows"]
    version = rows[0]["flower"]["version"]
    shares = " and ".join(
        f"`num_shares` {share} and `reconstruction_threshold` {threshold} at {devices} devices"
        for devices, (share, threshold) in SHARES.items()
    )
    bounds = " and ".join(
        f"{2 * FixedPoint(16, devices).bound:,} steps at {devices} devices" for devices in SHARES
    )
    lines = [
        f"Machine: {results['machine']}, flwr {version}; other programs ran beside it "
        f"(load {results['load']:.1f} at the start). Made by "
        "`python -m benchmarks.secret_costs --flower PYTHON`, where PYTHON has flwr; "
        "numbers in `results/secret_costs.json`.",
        "",
        "One sum, one turn. 10 % of the devices drop out: in Shoal they do not answer; in Flower "
        "they send nothing after they have shared their keys. Numbers of a device are means over "
        "those that answered; those of a helper are of each of three. Times are of the processor, "
        "and include reading and writing messages; training, network and the model's download are "
        f"left out. Flower has {shares}, chosen here, as it has no default. "
        "Shoal's integers have 16 bits, so that a number is "
        f"rounded at random to one of about {bounds}, and 32 bits would double its bytes; Flower's "
        "have 22 bits and are sent in 64. Shoal's sum was equal to that of the unmasked integers, "
        "and Flower's mean within its quantisation.",
        "",
        "| parameters | devices | system | exchanges of a device | device up | device down | "
        "device | server | a helper | helper in | helper out |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for title, costs in (("Shoal", row["shoal"]), (f"Flower {version}", row["flower"])):
            cells = [
                f"{row['parameters']:,}",
                str(row["devices"]),
                title,
                str(costs["exchanges"]),
                size(costs["device_up"]),
                size(costs["device_down"]),
                duration(costs["device_s"]),
                duration(costs["server_s"]),
            ]
            cells += (
                [duration(costs["helper_s"]), size(costs["helper_in"]), size(costs["helper_out"])]
                if "helper_s" in costs
                else ["-"] * 3
            )
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "The two do not promise the same. SecAgg+ needs no party beside the server and the "
        "devices, and by its protocol a device's numbers stay hidden unless as many of its "
        "neighbours as reconstruct side with the server. Its devices take part in four "
        "exchanges in a row, and the sum fails if too many neighbours of one device drop out. "
        "A device of Shoal takes part in one exchange, and may be gone afterwards. For that, "
        "other parties have to run three helpers, no sum is opened unless all three answer, "
        "and two of them together with the aggregator can read a device's numbers. The times "
        f"are of the programs as they are: flwr {version} draws each mask from NumPy's "
        "Mersenne Twister with a seed of 32 bits, which is no cryptographic generator, and "
        "Shoal from AES-256 in counter mode.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure both systems beside each other, write the results, print the table."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--flower", type=Path, required=True, help="interpreter that has flwr")
    reader.add_argument("--out", type=Path, default=OUT, help="file of the results")
    options = reader.parse_args()
    load, rows = os.getloadavg()[0], []
    for parameters, devices in CELLS:
        ours, theirs = measure(parameters, devices), flower(options.flower, parameters, devices)
        rows.append({"parameters": parameters, "devices": devices, "shoal": ours, "flower": theirs})
        print(json.dumps(rows[-1]), flush=True)
    results = {"machine": describe_machine(), "load": load, "rows": rows}
    shown = text(results)
    keep(results, options.out, OUT, "secret-costs", f"## Costs of a secret sum\n\n{shown}")
    print(shown)


if __name__ == "__main__":
    main()
