"""Devices, helpers and an aggregator that exchange a secret sum, without a network."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from aggregator.core.sums import opened, total_of
from edge_client.core.sums import SecretPolicy, answer
from helper.core.ledger import Ledger
from helper.core.sums import Rules, agreement, all_agree, check_set, sum_masks
from wire.arrays.tensors import Tensors
from wire.identity.certificates import key_digest, new_tls_key, write_public_key
from wire.secret.messages import Agreements, MaskSums, Shares, SumRequest, set_digest, sign
from wire.secret.question import Part, Share, SumQuestion

SIZES = {"change/a": 50, "change/b": 7}
DRAWS = np.random.default_rng(1)
DEVICES = [f"d{number}" for number in range(7)]
KEYS = {device: new_tls_key() for device in DEVICES}
ROSTER = {device: key.public_key() for device, key in KEYS.items()}
HELPER_KEYS = [new_tls_key() for _ in range(4)]
AGGREGATOR_KEY = new_tls_key()


@dataclass
class Exchange:
    """Devices, helpers and an aggregator, all honest."""

    num_helpers: int = 3
    bits: Literal[16, 32] = 16
    min_sum: int = 5
    sizes: dict[str, int] = field(default_factory=lambda: SIZES)
    ledgers: list[Ledger] = field(default_factory=lambda: [Ledger()] * 4)
    uploads: dict[str, tuple[Share, str, Tensors]] = field(default_factory=dict)
    numbers: dict[str, Tensors] = field(default_factory=dict)
    integers: dict[str, Tensors] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = HELPER_KEYS[: self.num_helpers]
        self.ask("a" * 64)

    def ask(self, about: str) -> None:
        """Begin a new question, which no device has answered."""
        names = tuple(key_digest(key.public_key()) for key in self.keys)
        parts = {name: Part(size, 0.25) for name, size in self.sizes.items()}
        self.question = SumQuestion(about, parts, self.bits, 10, self.min_sum, names, 0.0)
        self.uploads = {}

    def upload(self, device: str) -> None:
        numbers = {
            name: DRAWS.uniform(-0.3, 0.3, size).astype(np.float32)
            for name, size in self.sizes.items()
        }
        policy = SecretPolicy([key.public_key() for key in self.keys], self.min_sum)
        drawn: list[bytes] = []

        def draw(count: int) -> bytes:
            drawn.append(DRAWS.bytes(count))
            return drawn[-1]

        share, values = answer(self.question, numbers, device, policy, draw)
        self.uploads[device] = share, sign(KEYS[device], share), values
        self.numbers[device] = numbers
        uniform = [np.frombuffer(text, "<u4") / 2.0**32 for text in drawn[: len(self.sizes)]]
        self.integers[device] = {
            name: self.question.fixed.encode(numbers[name], 0.25, draws)
            for name, draws in zip(self.sizes, uniform, strict=True)
        }

    def shares(self, devices: Sequence[str]) -> Shares:
        return tuple(self.uploads[device][:2] for device in devices)

    def request(self, devices: Sequence[str], agreements: Agreements = ()) -> SumRequest:
        return SumRequest(
            self.question,
            set_digest(share for share, _ in self.shares(devices)),
            tuple(write_public_key(key.public_key()) for key in self.keys),
            write_public_key(AGGREGATOR_KEY.public_key()),
            agreements,
        )

    def rules(self, helper: int) -> Rules:
        return Rules(self.keys[helper], ROSTER, self.min_sum)

    def agree(self, helper: int, devices: Sequence[str]) -> Agreements:
        """The agreement of a helper, which has stored it."""
        request, rules = self.request(devices), self.rules(helper)
        members = check_set(request, self.shares(devices), self.ledgers[helper], rules)
        if members is not None:
            self.ledgers[helper] = self.ledgers[helper].after(
                self.question.digest, request.set, members, self.min_sum
            )
        message = agreement(request, rules)
        return ((message, sign(self.keys[helper], message)),)

    def masks(
        self, helper: int, devices: Sequence[str], agreements: Agreements
    ) -> tuple[MaskSums, Tensors]:
        """The sums of masks of a helper that has agreed; others may not have."""
        request, rules = self.request(devices, agreements), self.rules(helper)
        assert check_set(request, self.shares(devices), self.ledgers[helper], rules) is None
        assert all_agree(request, rules)
        return sum_masks(request, self.shares(devices), rules)

    def opened(self, devices: Sequence[str], answering: Sequence[int]) -> Tensors:
        agreements = sum((self.agree(h, devices) for h in range(self.num_helpers)), ())
        answers = [self.masks(helper, devices, agreements) for helper in answering]
        return opened(self.question, self.total(devices), answers)

    def total(self, devices: Sequence[str]) -> Tensors:
        """The sum of the masked integers."""
        return total_of(self.question, [self.uploads[device][2] for device in devices])
