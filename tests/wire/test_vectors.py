"""The vectors that every implementation of the protocol is held to."""

import base64
import errno
import json
import math
import re
from typing import Any, NamedTuple
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from edge_client.agent.inbox import Inbox, PlanHead
from edge_client.core import kept, offers
from edge_client.core import session as core
from edge_client.core.backoff import AggregatorTime
from edge_client.core.kept import usable
from edge_client.core.policy import broken_rule
from edge_client.core.ports import Current
from edge_client.core.report import Machine, bounded, permitted_detail
from edge_client.storage.state import START, DeviceState
from tests.wire import (
    error_vectors,
    personal_model_vectors,
    policy_vectors,
    private_vectors,
    session_vectors,
    signature_vectors,
    signed_vectors,
    starts_vectors,
    time_vectors,
)
from tests.wire.signature_vectors import SignatureCase
from tests.wire.signed_vectors import A
from tests.wire.write_vectors import (
    FILES,
    GOLDEN,
    HOSTILE,
    HOSTILE_MESSAGES,
    HOSTILE_TENSORS,
    MESSAGES,
    NEWER,
    UPDATE,
    UPDATE_TENSORS,
)
from wire import messages as m
from wire.arrays.tensors import TensorSpec, decode_tensors
from wire.codec import decode, decode_update, encode, encode_update
from wire.errors import BundleError, SecondDevice, Untrusted, WireError
from wire.identity.certificates import has_signed
from wire.identity.keys import public_key, read_public, verifies
from wire.identity.signed import VOUCHER_CONTEXT, Verifier
from wire.links.port import Delivery
from wire.topics import Topics


@pytest.mark.parametrize("name", MESSAGES)
def test_golden_message_is_read_and_written_to_the_same_bytes(name: str) -> None:
    payload = (GOLDEN / f"{name}.json").read_bytes()
    assert decode(payload, m.Message) == MESSAGES[name]
    assert encode(MESSAGES[name]) == payload


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_a_later_minor_version_is_read_as_this_version_would_have_written_it(
    name: str,
) -> None:
    payload = (NEWER / f"{name}.json").read_bytes()
    assert payload.count(b'"later"') >= 1
    assert decode(payload, m.Message) == MESSAGES[name]


class TestSigned:
    VERIFIER = Verifier(
        signed_vectors.FLEET, read_public((signed_vectors.FOLDER / "TRUST.pem").read_bytes())
    )

    @pytest.mark.parametrize(
        "name", [name for name in signed_vectors.FILES if name.startswith("good")]
    )
    def test_a_signed_message_is_believed(self, name: str) -> None:
        expected = m.Acknowledge("p01-left", A) if "acknowledge" in name else signed_vectors.PLAN
        assert (
            self.VERIFIER.open(
                (signed_vectors.FOLDER / name).read_bytes(),
                m.Plan | m.Acknowledge,
                signed_vectors.NOW_S,
            )
            == expected
        )

    @pytest.mark.parametrize(
        "name", [name for name in signed_vectors.FILES if name.startswith("bad")]
    )
    def test_a_forged_message_is_not(self, name: str) -> None:
        with pytest.raises(WireError):
            self.VERIFIER.open(
                (signed_vectors.FOLDER / name).read_bytes(),
                m.Plan | m.Acknowledge,
                signed_vectors.NOW_S,
            )

    def test_a_voucher_is_looked_at_again_when_its_time_is_over(self) -> None:
        good = (signed_vectors.FOLDER / "good-plan").read_bytes()
        self.VERIFIER.open(good, m.Plan, signed_vectors.NOW_S)
        with pytest.raises(Untrusted, match="it ended 10 s ago"):
            self.VERIFIER.open(good, m.Plan, signed_vectors.UNTIL_S + 10)

    def test_who_trusts_no_key_takes_the_first_line(self) -> None:
        unsigned = (signed_vectors.FOLDER / "bad-unsigned").read_bytes()
        assert Verifier("default", ()).open(unsigned, m.Plan, 0.0) == signed_vectors.PLAN

    def test_the_files_are_those_of_this_version(self) -> None:
        assert {
            path.name: path.read_bytes() for path in signed_vectors.FOLDER.iterdir()
        } == signed_vectors.FILES
        for vectors in FILES:
            assert vectors.FILE.read_text() == vectors.text(), (
                "run python -m tests.wire.write_vectors"
            )


@pytest.mark.parametrize("case", signature_vectors.ed25519_cases(), ids=lambda case: case.name)
def test_an_ed25519_signature_is_valid_or_not(case: SignatureCase) -> None:
    try:
        valid = verifies(public_key(case.key), case.signature, case.message)
    except BundleError:
        valid = False
    assert valid == case.valid


@pytest.mark.parametrize("case", signature_vectors.ecdsa_cases(), ids=lambda case: case.name)
def test_an_ecdsa_signature_is_valid_or_not(case: SignatureCase) -> None:
    key = serialization.load_der_public_key(case.key)
    assert isinstance(key, EllipticCurvePublicKey)
    assert has_signed(key, case.signature.hex(), case.message) == case.valid


@pytest.mark.parametrize(
    "key",
    [case.key for case in signature_vectors.ed25519_cases() if "key of order" in case.name],
    ids=bytes.hex,
)
def test_a_service_key_of_small_order_signs_for_nobody(key: bytes) -> None:
    text = encode(m.Voucher(signed_vectors.FLEET, key.hex(), signed_vectors.UNTIL_S))
    signature = base64.b64encode(signed_vectors.ROOT_KEY.sign(VOUCHER_CONTEXT + text))
    forged = base64.b64encode(signature_vectors.NEUTRAL + bytes(32))
    payload = b"\n".join((encode(signed_vectors.PLAN), forged, text, signature))
    with pytest.raises(Untrusted, match="is not an Ed25519 public key"):
        TestSigned.VERIFIER.open(payload, m.Plan, signed_vectors.NOW_S)


@pytest.mark.parametrize(
    "case", json.loads(policy_vectors.FILE.read_text())["cases"], ids=lambda case: case["name"]
)
def test_policy(case: dict[str, Any]) -> None:
    about = json.loads(policy_vectors.FILE.read_text())["about"]
    plan = msgspec.convert(case["plan"], m.Plan)
    rule = broken_rule(
        msgspec.convert(case["policy"], m.Policy),
        plan,
        about["bundle"],
        about["measuring"],
        np.array(about["labels"]),
        about["num_test"],
    )
    assert (rule or "").partition(":")[0] == case["rule"]


@pytest.mark.parametrize(
    "case", json.loads(error_vectors.FILE.read_text())["reports"], ids=lambda case: case["name"]
)
def test_error_report(case: dict[str, Any]) -> None:
    expected = msgspec.convert(case["expected"], m.ErrorReport)
    case["report"].pop("type")
    report = m.ErrorReport(**case["report"])  # it may be longer than a message
    assert bounded(report, case["home"]) == expected
    assert len(encode(expected)) <= m.ERROR_BYTES


@pytest.mark.parametrize("case", json.loads(error_vectors.FILE.read_text())["details"])
def test_detail_of_a_decline(case: dict[str, Any]) -> None:
    expected = permitted_detail(case["report_errors"], case["reason"], case["detail"])
    assert expected == case["expected"]


@pytest.mark.parametrize(
    "case", json.loads(error_vectors.FILE.read_text())["plans"], ids=lambda case: case["name"]
)
def test_a_plan_that_cannot_be_read(case: dict[str, Any]) -> None:
    topics = Topics("f")
    inbox = Inbox("p01-left", topics, (), lambda: 0.0, 2**20)
    delivery = Delivery(topics.device("p01-left", "plan"), case["plan"].encode())
    if not case["outdated"]:
        with pytest.raises(WireError):
            inbox.open(delivery)
        return
    head = inbox.open(delivery)
    assert isinstance(head, PlanHead)
    assert (head.round, head.attempt) == (3, 7)
    assert f"{m.CLIENT}, which speaks protocol {m.PROTOCOL_VERSION}" in head.problem
    assert "update the client" in head.problem


def test_the_page_for_other_clients_has_every_event_and_every_action_of_the_scenarios() -> None:
    page = (
        (session_vectors.FILE.parents[2] / "docs" / "other-clients.md")
        .read_text()
        .partition("### How to play `session.json`")[2]
    )
    steps = [
        step
        for scenario in json.loads(session_vectors.FILE.read_text())
        for step in scenario["steps"]
    ]
    rows = {
        name: row
        for row in re.findall(r"^\| (`.+)$", page, re.MULTILINE)
        for name in re.findall(r"`([\w ]+)`", row.partition("|")[0])
    }
    assert [step for step in steps if step["event"] not in rows] == []
    for step in steps:
        assert [
            name
            for name in step.keys() - {"event", "action"}
            if f"`{name}`" not in rows[step["event"]]
        ] == [], step
        assert step["action"].partition(" ")[0] in {name.partition(" ")[0] for name in rows}, step


@pytest.mark.parametrize(
    "scenario", json.loads(session_vectors.FILE.read_text()), ids=lambda scenario: scenario["name"]
)
def test_session(scenario: dict[str, Any]) -> None:
    session, models = core.Session(), Models()
    for number, step in enumerate(scenario["steps"]):
        if step["event"] in (
            "release",
            "finish",
            "try",
            "taken",
            "failed",
            "broken off",
            "again",
            "kept",
            "back",
            "report",
        ):
            session, models, said = _play_offer(session, models, dict(step))
        elif step["event"] == "client start":
            said = "killed" if core.was_killed(session) else "none"
            session = msgspec.structs.replace(session, machine=None)
        else:
            session, action = _play(session, dict(step))
            said = f"{action.kind} {action.reason}" if action.kind == "decline" else action.kind
            assert bool(action.proof) == (said == "decline stale")
        assert said == step["action"], f"step {number}: {step}"
    assert (session.offer.model if session.offer else "") == 64 * scenario["offered"]


@pytest.mark.parametrize(
    "case", json.loads(personal_model_vectors.FILE.read_text()), ids=lambda case: case["name"]
)
def test_kept(case: dict[str, Any]) -> None:
    held: tuple[kept.PersonalModel, ...] = ()
    for made in case["personal_models"]:
        held = kept.with_kept(held, msgspec.convert(made, kept.PersonalModel))
    assert [one.tensors for one in held] == case["held"]
    offered = case["offered"]
    own = kept.kept_of(held, offered["bundle"], offered["model"])
    assert (own.tensors if own else "") == case["used"]
    assert bool(kept.why_alone(held, offered["bundle"], offered["model"])) == case["alone"]


@pytest.mark.parametrize(
    "case", json.loads(private_vectors.FILE.read_text())["cases"], ids=lambda case: case["name"]
)
def test_private(case: dict[str, Any]) -> None:
    about = json.loads(private_vectors.FILE.read_text())["about"]
    stored = {one["name"]: np.zeros(one["shape"], one["dtype"]) for one in case["stored"]}
    assert (
        list(
            usable(msgspec.convert(about["tensors"], list[TensorSpec]), stored, about["num_train"])
        )
        == case["used"]
    )


class Models(NamedTuple):
    """The model in use, and the one before."""

    current: Current | None = None
    before: Current | None = None

    def begins(self, session: core.Session) -> str:
        """Return the action: an offer is to be taken into use, or nothing."""
        is_open = offers.open_offer(session, offers.newest(*self)) is not None
        return "try" if is_open else "none"


def _play_offer(
    session: core.Session, models: Models, step: dict[str, Any]
) -> tuple[core.Session, Models, str]:
    """Play a step that is about models in use: the session, the models, and the action."""
    before, offer, current = session, session.offer, models.current
    match step["event"]:
        case "release":
            release = m.Release(
                "d", step["epoch"], step["number"], "", "r", A, step["offered"] * 64
            )
            session = offers.on_release(session, release)
        case "finish":
            finish = m.Finish(
                "d",
                step.get("run", "r"),
                step["epoch"],
                A,
                step["offered"] * 64,
                step.get("releases", False),
                step.get("number", 0),
            )
            session = core.on_reply(session, finish)[0]
        case "try":
            session = offers.on_trying(session)
            return session, models, models.begins(session)
        case "taken":
            assert offer is not None
            session = offers.on_taken(offers.on_measured(session, offer, "b", 1))
            own = kept.kept_of(session.personal_models, offer.bundle, offer.model)
            taken = Current(
                offer.bundle,
                offer.model,
                "",
                offer.run_id,
                offer.epoch,
                0.0,
                offer.number,
                personal_model=own.tensors if own else "",
            )
            return session, Models(taken, current), "none"
        case "failed":
            return offers.on_failed(session, "failed"), models, "none"
        case "broken off":
            return offers.on_interrupted(session), models, "none"
        case "back":
            assert current is not None
            assert models.before is not None
            models = Models(offers.gone_back(current, models.before, "worse"), current)
            return session, models, models.begins(session)
        case "again":
            session = offers.on_again(session)
        case "kept":
            session = core.on_personal_model(
                session, kept.PersonalModel("r", A, step["of"] * 64, step["tensors"] * 64)
            )
            return session, models, models.begins(session)
        case "report":
            assert (current.personal_model if current else "") == step["used"] * 64
            said = offers.in_use(session, "d", current)
            assert (said.number, said.offered, bool(said.problem)) == (
                step["number"],
                step["offered"],
                bool(step["problem"]),
            )
            assert bool(said.alone) == step["alone"]
    return session, models, models.begins(session) if session.offer != before.offer else "none"


def _play(session: core.Session, step: dict[str, Any]) -> tuple[core.Session, core.Action]:
    match step.pop("event"):
        case "plan":
            plan = m.Plan(
                step["run"],
                step["epoch"],
                step["round"],
                step["attempt"],
                "d",
                A,
                A,
                (),
                0,
                step["deadline_at_s"],
            )
            return core.on_plan(session, plan, encode(plan).decode(), step["now_s"])
        case "start":
            return core.on_start(session, Machine())
        case "stopped":
            return core.on_stopped(session), core.NOTHING
        case "resumed":
            assert session.plan is not None
            return core.on_resumed(session, session.plan, step["runs"]), core.NOTHING
        case "progress":
            assert session.plan is not None
            return core.on_progress(session, session.plan, step["runs"]), core.NOTHING
        case "executed":
            assert session.plan is not None
            return core.on_executed(session, session.plan, step["update"] * 64), core.NOTHING
        case "declined":
            assert session.plan is not None
            return core.on_declined(session, session.plan, step["reason"], "")
        case "busy":
            return core.on_reply(session, m.Busy("d", step["update"] * 64, 1.0))
        case "refuse":
            return core.on_reply(
                session, m.Refuse("d", "not-finite", "", "update", step["update"] * 64)
            )
        case "acknowledge":
            return core.on_reply(session, m.Acknowledge("d", step["update"] * 64))
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize(
    "scenario", json.loads(time_vectors.FILE.read_text()), ids=lambda scenario: scenario["name"]
)
def test_time(scenario: dict[str, Any]) -> None:
    clock_s = 50.0
    time = AggregatorTime(lambda: clock_s)
    for step in scenario["steps"]:
        clock_s += step["after_s"]
        assert (
            time.hear(m.AggregatorStatus(True, "boot", step["epoch"], step["at_s"])) == step["acts"]
        )
        assert time.now_s == time.for_epoch(step["known"]) == step["now_s"]
        assert time.for_epoch(step["known"] + 1) == -math.inf


@pytest.mark.parametrize(
    "case", json.loads(starts_vectors.FILE.read_text())["begin"], ids=lambda case: case["name"]
)
def test_start(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    state = DeviceState()
    if case["last"] is not None:
        last = b"{" if case["last"] == "damaged" else json.dumps(case["last"]).encode()
        state.files.write(START, last)
    if not case["stored"]:
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(state.files, "write", Mock(side_effect=full))
    if case["ends"]:
        with pytest.raises(SecondDevice):
            state.begin(case["drawn"])
        return
    start = state.begin(case["drawn"])
    assert start == core.Start(case["number"], case["instance"])
    if case["stored"]:
        assert state.document(START, core.Start) == start


@pytest.mark.parametrize(
    "case", json.loads(starts_vectors.FILE.read_text())["refuse"], ids=lambda case: case["name"]
)
def test_refusal_of_a_second_device(case: dict[str, Any]) -> None:
    refusal = m.Refuse("d", case["reason"], "", "check-in", instance=case["refused"])
    assert core.Start(3, case["instance"]).is_meant_by(refusal) == case["ends"]


def test_golden_update() -> None:
    payload = (GOLDEN / "update.safetensors").read_bytes()
    update, tensors = decode_update(payload)
    assert update == UPDATE
    assert {k: v.tolist() for k, v in tensors.items()} == {
        k: v.tolist() for k, v in UPDATE_TENSORS.items()
    }
    assert encode_update(UPDATE, UPDATE_TENSORS) == payload


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_hostile_tensor_file_is_refused(name: str) -> None:
    with pytest.raises(WireError):
        decode_tensors((HOSTILE / f"{name}.safetensors").read_bytes())


@pytest.mark.parametrize("name", HOSTILE_MESSAGES)
def test_hostile_message_is_refused(name: str) -> None:
    with pytest.raises(WireError):
        decode((HOSTILE / f"{name}.json").read_bytes(), m.Message)


def test_no_vector_is_forgotten() -> None:
    assert {p.stem for p in HOSTILE.iterdir()} == HOSTILE_TENSORS.keys() | HOSTILE_MESSAGES.keys()
