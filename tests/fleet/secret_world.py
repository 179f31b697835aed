"""A service in secret mode, as far as the machine can tell, with helpers that keep real ledgers."""

from typing import Any

from msgspec.structs import replace

from aggregator.core.sums import requests_of
from aggregator.fleet import events as e
from aggregator.fleet import sums
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import Fleet
from aggregator.fleet.rounds import lacking
from aggregator.ports import Store
from algorithms.core.keys import NEWCOMER
from helper.core.ledger import Ledger, SetRefused
from tests.fleet.cases import all_work, run
from tests.fleet.world import Client, World, asks_for_sum, digest_of
from wire.identity.certificates import new_tls_key, write_public_key
from wire.messages import Mask
from wire.secret.messages import Agreement, Answer, MaskSums, ShareCheck, SumRefusal
from wire.secret.named_keys import NamedKey
from wire.secret.question import Part, SumQuestion

HELPERS = tuple(
    NamedKey(name, write_public_key(new_tls_key().public_key())) for name in ("n", "s", "e")
)
PARTS = {key: {"shared/w": Part(3, 0.25)} for key in (NEWCOMER, "0")}
TEN = tuple(f"d{number}" for number in range(10))


class Secret(World):
    """A service in secret mode, with helpers that keep real ledgers."""

    def __init__(self, *device_ids: str, store: Store | None = None, **settings: Any) -> None:
        super().__init__(store)
        self.ledgers = {helper.digest: Ledger() for helper in HELPERS}
        self.down: set[str] = set()
        """Helpers that do not answer."""
        self.refusal = ""
        """Reason for which every helper refuses any set; empty if it does not."""
        self.unusable = set[str]()
        """Devices that have sealed wrong seeds to the first helper."""
        self.asked: list[SumQuestion] = []
        """Questions of the plans, in order."""
        for device_id in device_ids:
            self.clients[device_id] = Client()
            self.check_in(device_id)
        usual: dict[str, Any] = {"rounds": 3, "min_devices": 2, "deadline_s": 100.0}
        settings = usual | {"secret": True, "min_sum": 5, "helpers": HELPERS} | settings
        self.begin(settings)

    def begin(self, settings: dict[str, Any]) -> None:
        """Start the campaign."""
        self.start("run", parts=PARTS, **settings)

    def aggregate(self, command: e.Aggregate, *_: Any, **__: Any) -> None:
        campaign = self.fleet.campaigns[command.campaign]
        assert sums.stage_of(campaign) == "opened"
        devices = sorted(d for secret in campaign.sums.values() for d in secret.devices)
        left_out = set(campaign.updates) - set(devices)
        assert left_out <= self.unusable or campaign.version.has_cells
        models = {"initial": digest_of("first"), "0": digest_of(f"model{command.round}")}
        version = replace(campaign.version, round=command.round, models=models, newcomers="0")
        groups = {d: "0" for d in devices if self.group(campaign, d) != "0"}
        self.feed(
            e.Aggregated(
                at_s=self.now_s,
                campaign=command.campaign,
                round=command.round,
                version=version,
                groups=groups,
            )
        )

    def feed(self, event: e.Event) -> list[e.Command]:
        commands = super().feed(event)
        for command in commands:
            if isinstance(command, e.SendPlan) and asks_for_sum(command.assignment):
                mask = command.assignment.verbs[-1]
                assert isinstance(mask, Mask)
                if mask.question not in self.asked:
                    self.asked.append(mask.question)
        return commands

    def carry_out(self, count: int = 10**6, lose: bool = False) -> None:
        while self.outbox and count > 0:
            count -= 1
            if isinstance(self.outbox[0], e.AskHelpers):
                self.outbox.pop(0)
                if not lose:
                    self.answer()
            else:
                super().carry_out(1, lose)

    def check_received(self, before: Fleet, event: e.Event) -> None:
        """Answers to a question that was never opened are lost, in each further attempt."""
        campaign = self.fleet.campaigns.get("run")
        if campaign is None or campaign.attempt == 0:
            super().check_received(before, event)

    def answer(self) -> None:
        """Let the helpers answer the requests that the service would send now."""
        keys = {helper.digest: helper.der for helper in HELPERS}
        requests = [
            (secret, helper, request)
            for secret in run(self).sums.values()
            for helper, request in requests_of(secret, keys, b"").items()
            if helper not in self.down
        ]
        for secret, helper, request in requests:
            answer: Answer
            ledger, question = self.ledgers[helper], request.question
            try:
                if self.refusal:
                    raise SetRefused(self.refusal)
                if request.check and (unusable := self.unusable_to(helper) & set(secret.devices)):
                    check = ShareCheck(
                        helper, question.digest, request.set, tuple(sorted(unusable))
                    )
                    self.tell(check)
                    continue
                known_set = ledger.check(
                    question.digest, request.set, set(secret.devices), question.min_sum
                )
                if not known_set and not request.check:
                    self.ledgers[helper] = ledger.after(
                        question.digest, request.set, secret.devices
                    )
                if request.check:
                    answer = ShareCheck(helper, question.digest, request.set, ())
                elif request.agreements:
                    answer = MaskSums(helper, request.set, {})
                else:
                    answer = Agreement(helper, question.digest, request.set)
            except SetRefused as error:
                answer = SumRefusal(helper, question.digest, str(error))
            self.tell(answer)

    def unusable_to(self, helper: str) -> set[str]:
        """The devices whose shares a helper cannot use."""
        return self.unusable if helper == HELPERS[0].digest else set()

    def tell(self, answer: Answer) -> None:
        """Let the service take in an answer of a helper."""
        blob = digest_of(f"masks{answer.helper[:4]}") if isinstance(answer, MaskSums) else ""
        event = e.SumAnswered(
            at_s=self.now_s, campaign="run", answer=answer, signature="", blob=blob
        )
        self.feed(event)

    def do_all(self, *device_ids: str) -> None:
        """Let these devices, or all, do their work until nobody has any."""
        for _ in range(20):
            all_work(self, *device_ids)

    @property
    def lack(self) -> str:
        return lacking(Turn(self.fleet), run(self)).text
