"""The vectors of secret sums, ``secret.json``: what a device computes for them.

``integers``: numbers as their 32 bits, the draws of 32 bits that round them, and their integers.
``masks``: a seed, and the SHA-256 of its mask. ``sealed``: a text that was sealed with a key of its
own, which a sealer otherwise draws. ``answers``: a question, the policy of a device's owner, and
either the problem for which the device declines it, or its answer from these random bytes.
``plans``: plans with a question, and the problem for which the device declines it at that time.
``numbers``: the numbers of each part, from the change of a model. ``check_ins``: the facts of a
device, and what of them its owner permits. ``surveys``: a device's survey as 32 bits by tensor, an
exchange or `tell-group`, and its numbers, its node, or the problem. ``roundings``: the SHA-256 of
the bytes that round an exchange. ``hostile_surveys``: verbs that no plan may have.
Keys are DER in hexadecimal digits: PKCS #8, and SubjectPublicKeyInfo.
"""

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from msgspec.structs import replace

from edge_client.core.policy import permitted_facts
from edge_client.core.sums import Declined, SecretPolicy, answer, check_about, numbers_of
from edge_client.core.survey import coordinates, measured_in, rounding_of
from edge_client.core.survey import numbers_of as numbers_of_survey
from tests.wire.signed_vectors import VECTORS, A, B
from wire.arrays.tensors import Array, Tensors
from wire.codec import digest, encode
from wire.errors import Malformed
from wire.identity.certificates import TlsKey, TlsPublicKey, key_digest
from wire.messages import CheckIn, Mask, Metrics, Plan, Policy, Protect, Train
from wire.secret.coordinates import node_of
from wire.secret.fixed import FixedPoint
from wire.secret.masks import SEED_BYTES, mask
from wire.secret.messages import SCALARS, about_of, purpose_of, seeds_of
from wire.secret.question import Noise, Part, Share, SumQuestion
from wire.secret.survey import (
    WIDTH,
    Axis,
    Plane,
    SurveyScale,
    SurveySum,
    TellGroup,
    parts_of,
)

FILE = VECTORS / "secret.json"
SIGNED = b"shoal/1 secret\n"
"""Bytes before a share that its device signs."""
DEVICE = "phone.1"
_KEM, _SUITE = b"KEM\x00\x10", b"HPKE\x00\x10\x00\x01\x00\x01"


def _bytes(seed: bytes, count: int) -> bytes:
    return hashlib.shake_256(seed).digest(count)


def key(number: int) -> TlsKey:
    """Return the P-256 key of this number."""
    return ec.derive_private_key(int.from_bytes(_bytes(b"key %d" % number, 31)), ec.SECP256R1())


HELPERS = tuple(key(number) for number in range(5))
DEVICE_KEY = key(9)


def private_der(of: TlsKey) -> str:
    """Return a private key in hexadecimal digits."""
    encoding, layout = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8
    return of.private_bytes(encoding, layout, serialization.NoEncryption()).hex()


def public_der(of: TlsPublicKey) -> str:
    """Return a public key in hexadecimal digits."""
    layout = serialization.PublicFormat.SubjectPublicKeyInfo
    return of.public_bytes(serialization.Encoding.DER, layout).hex()


def _point(of: TlsPublicKey) -> bytes:
    layout = serialization.PublicFormat.UncompressedPoint
    return of.public_bytes(serialization.Encoding.X962, layout)


def _extract(suite: bytes, salt: bytes, label: bytes, text: bytes = b"") -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + suite + label + text, "sha256")


def _expand(suite: bytes, secret: bytes, label: bytes, info: bytes, count: int) -> bytes:
    labelled = count.to_bytes(2) + b"HPKE-v1" + suite + label + info
    return HKDFExpand(hashes.SHA256(), count, labelled).derive(secret)


def sealed(text: bytes, helper: TlsPublicKey, purpose: bytes, ephemeral: TlsKey) -> bytes:
    """Return `wire.secret.sealing.seal` with a key that is otherwise drawn (RFC 9180, 4.1, 5.1)."""
    encapsulated = _point(ephemeral.public_key())
    exchange = _extract(_KEM, b"", b"eae_prk", ephemeral.exchange(ec.ECDH(), helper))
    context = encapsulated + _point(helper)
    shared = _expand(_KEM, exchange, b"shared_secret", context, 32)
    names = _extract(_SUITE, b"", b"psk_id_hash") + _extract(_SUITE, b"", b"info_hash", purpose)
    secret = _extract(_SUITE, shared, b"secret")
    aes, nonce = (
        _expand(_SUITE, secret, label, b"\0" + names, count)
        for label, count in ((b"key", 16), (b"base_nonce", 12))
    )
    return encapsulated + AESGCM(aes).encrypt(nonce, text, b"")


def _bits(numbers: Array) -> list[int]:
    return [int(n) for n in numbers.view(np.uint32)]


def _integers() -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    edges = np.array(
        [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -3e38, 0.25, -0.25, 0.1], np.float32
    )
    rows = []
    for bits, most, clip in (
        (16, 1, 0.25),
        (16, 20, 0.25),
        (16, 4095, 1e-4),
        (32, 20, 8.0),
        (32, 4096, 0.3),
        (32, 1_000_000, 1e4),
    ):
        numbers = np.concatenate([edges, rng.normal(0, clip, 20).astype(np.float32)])
        draws = rng.integers(0, 2**32, len(numbers), np.uint32)
        draws[3:5], draws[8:10] = 0, 2**32 - 1
        fixed = FixedPoint(bits, most)
        integers = fixed.encode(numbers, clip, draws / 2.0**32)
        rows.append(
            {"bits": bits, "most": most, "clip": clip, "numbers": _bits(numbers)}
            | {"draws": draws.tolist(), "integers": integers.tolist()}
        )
    return rows


def _masks() -> list[dict[str, Any]]:
    rows = []
    for number, (part, bits, count) in enumerate(
        (("change", 16, 1), ("change", 32, 1), ("b/läuft", 16, 7), ("", 32, 40), ("a", 16, 70_001))
    ):
        seed = _bytes(b"seed %d" % number, SEED_BYTES)
        values = mask(seed, part, count, FixedPoint(bits, 1).dtype)
        rows.append(
            {"seed": seed.hex(), "part": part, "bits": bits, "count": count}
            | {"mask": digest(values.tobytes())}
        )
    return rows


def _sealed() -> list[dict[str, str]]:
    rows = []
    for number, (text, purpose) in enumerate(
        ((b"seeds", b"question 1"), (bytes(64), b""), (b"", b"\n\0")), start=20
    ):
        helper, ephemeral = HELPERS[number % 3], key(number)
        rows.append(
            {"helper": private_der(helper), "public": public_der(helper.public_key())}
            | {"ephemeral": private_der(ephemeral)}
            | {"ephemeral_public": public_der(ephemeral.public_key())}
            | {"text": text.hex(), "purpose": purpose.hex()}
            | {"sealed": sealed(text, helper.public_key(), purpose, ephemeral).hex()}
        )
    return rows


@dataclass(frozen=True)
class _Case:
    name: str
    bits: int = 16
    most: int = 20
    min_sum: int = 5
    helpers: tuple[int, ...] = (0, 1, 2)
    pinned: tuple[int, ...] = (0, 1, 2)
    least: int = 5
    parts: tuple[tuple[str, int, float], ...] = (("change", 6, 0.25),)
    noise: Noise | None = None


CASES = (
    _Case("three helpers"),
    _Case("in another order", helpers=(2, 0, 1), min_sum=7),
    _Case("one helper", helpers=(1,), pinned=(1,), bits=32),
    _Case("four helpers", helpers=(3, 0, 1, 2), pinned=(0, 1, 2, 3), bits=32, most=5000),
    _Case(
        "several parts",
        parts=(("z", 2, 1.0), ("\U0001f600", 1, 1e-4), ("\uffff", 3, 1e16), ("a/läuft", 1, 8.0)),
    ),
    _Case("noise", bits=32, parts=(("z", 9, 1.0), ("a", 4, 1.0)), noise=Noise(16.0, 4.0)),
    _Case("much noise", bits=32, most=1000, noise=Noise(2000.5, 65536.0)),
    _Case("noise on one number", bits=32, parts=(("a", 1, 2.0),), noise=Noise(4.0, 57.3)),
    _Case("too few devices", min_sum=4),
    _Case("fewer than the owner wants", min_sum=9, least=10),
    _Case("a helper that is not pinned", helpers=(0, 1, 4)),
    _Case("a helper less", helpers=(0, 1)),
    _Case("a helper more", helpers=(0, 1, 2, 3)),
    _Case("a helper twice", helpers=(0, 1, 2, 2)),
    _Case("no helper is pinned", pinned=()),
)


def _answer(case: _Case, number: int) -> dict[str, Any]:
    digests = tuple(key_digest(HELPERS[n].public_key()) for n in case.helpers)
    parts = {name: Part(count, clip) for name, count, clip in case.parts}
    bits: Any = case.bits
    question = SumQuestion(
        A, parts, bits, case.most, case.min_sum, digests, 1.8e9 + number, noise=case.noise
    )
    policy = SecretPolicy([HELPERS[n].public_key() for n in case.pinned], case.least)
    rng = np.random.default_rng(number)
    numbers = {
        name: rng.normal(0, part.clip, part.count).astype(np.float32)
        for name, part in parts.items()
    }
    drawn = _bytes(b"draws %d" % number, 1000)
    row = {
        "name": case.name,
        "question": msgspec.to_builtins(question),
        "digest": question.digest,
        "pinned": [public_der(key) for key in policy.helpers],
        "min_sum": case.least,
    }
    at = 0

    def draw(count: int) -> bytes:
        nonlocal at
        at += count
        return drawn[at - count : at]

    try:
        share, values = answer(question, numbers, DEVICE, policy, draw)
    except Declined as error:
        return row | {"problem": str(error)}
    first = at - SEED_BYTES * len(digests)  # the seeds are drawn last
    seeds = [drawn[first + SEED_BYTES * n :][:SEED_BYTES] for n in range(len(digests))]
    ephemerals = [key(100 * number + n) for n in range(len(digests))]
    purpose = purpose_of(question.digest, DEVICE, share.upload)
    texts = tuple(
        sealed(
            b"".join(seeds[j] for j in seeds_of(n, len(digests))),
            HELPERS[helper].public_key(),
            purpose,
            ephemerals[n],
        )
        for n, helper in enumerate(case.helpers)
    )
    share = Share(share.question, DEVICE, share.upload, share.values, texts)
    text = msgspec.json.encode(share)
    signature = DEVICE_KEY.sign(
        SIGNED + text, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    )
    return row | {
        "problem": None,
        "numbers": {name: _bits(values) for name, values in numbers.items()},
        "drawn": drawn[:at].hex(),
        "ephemerals": [
            {"private": private_der(key), "public": public_der(key.public_key())}
            for key in ephemerals
        ],
        "values": {name: integers.tolist() for name, integers in values.items()},
        "share": text.decode(),
        "signature": signature.hex(),
    }


PLAN = Plan("run", 1, 1, 1, DEVICE, A, B, (Train(8), Protect(1.0)), 0, 2e9)


def _plans() -> list[dict[str, Any]]:
    """Plans with a question, and what is wrong with it at a time."""
    about = about_of(A, B, PLAN.verbs)
    question = SumQuestion(about, {"shared/w": Part(6, 0.25)}, 16, 20, 5, (A,), 1.8e9)
    cases: tuple[tuple[str, Plan, dict[str, Any], float], ...] = (
        ("about its plan", PLAN, {}, 1.7e9),
        ("closed", PLAN, {}, 1.8e9),
        ("about another model", replace(PLAN, model=A), {}, 1.7e9),
        ("about other verbs", replace(PLAN, verbs=(Train(8),)), {}, 1.7e9),
        ("about nothing", PLAN, {"about": A}, 1.7e9),
    )
    rows = []
    for name, plan, changes, now_s in cases:
        changed = replace(question, **changes)
        plan = replace(plan, verbs=(*plan.verbs, Mask(changed)))
        try:
            check_about(changed, plan, now_s)
            problem = None
        except Declined as error:
            problem = str(error)
        rows.append(
            {"name": name, "plan": encode(plan).decode(), "now_s": now_s, "problem": problem}
        )
    return rows


def _numbers() -> list[dict[str, Any]]:
    """Changes of a model and a number of windows, and the numbers of each part."""
    received: Tensors = {
        "shared/w": np.array([[1, -2], [0.5, 4]], np.float32),
        "statistic/m": np.array([1, 2], np.float32),
    }
    update: Tensors = {
        "delta/w": np.array([[0.5, np.nan], [-0.125, 0.1]], np.float32),
        "statistic/m": np.array([9, 2.5], np.float32),
    }
    parts = {"shared/w": Part(4, 0.25), "statistic/m": Part(2, 2.0)}
    rows = []
    none, some = Metrics(), Metrics(8, 12.0, 6)
    cases: tuple[tuple[str, dict[str, Part], Tensors, tuple[Metrics, ...]], ...] = (
        ("changes", parts, update, ()),
        ("no change", parts, {}, ()),
        ("a test", parts | SCALARS, update, (some, Metrics(3, 1.0, 1))),
        ("no test, but training", SCALARS, update, (none, Metrics(3, 1.0, 1))),
        ("neither", SCALARS, update, (none, none)),
        ("another clip of the accuracy", {"accuracy": Part(1, 0.5)}, update, (some,)),
        ("more than one loss", {"loss": Part(2, 16.0)}, update, (some,)),
        ("no tensor of the model", {"weight": Part(1, 100.0)}, update, (some,)),
        ("another size", {"shared/w": Part(3, 0.25)}, update, (some,)),
    )
    for name, asked, changed, measured in cases:
        question = SumQuestion(A, asked, 16, 20, 5, (A,), 0.0)
        try:
            numbers = numbers_of(question, changed, received, measured)
            problem = None
        except Malformed as error:
            numbers, problem = {}, str(error)
        rows.append(
            {
                "name": name,
                "question": msgspec.to_builtins(question),
                "measured": [
                    float(number)
                    for each in measured
                    for number in (each.num_examples, each.loss_sum, each.num_correct)
                ],
                "received": {key: _bits(value.ravel()) for key, value in received.items()},
                "update": {key: _bits(value.ravel()) for key, value in changed.items()},
                "problem": problem,
                "numbers": {key: _bits(value) for key, value in numbers.items()},
            }
        )
    return rows


def _check_ins() -> list[dict[str, Any]]:
    """Facts of a device's data, and those of them that its owner permits."""
    rows = []
    for num_train in (0, 31, 32, 500):
        for policy in (Policy(), Policy(min_sum=5)):
            facts = CheckIn(
                DEVICE, num_train, 9, policy=policy, classes=(4, 5), num_unlabelled=7, moved=True
            )
            permitted = permitted_facts(policy, facts)
            rows.append({"facts": encode(facts).decode(), "permitted": encode(permitted).decode()})
    return rows


def vector_survey(number: int, inputs: int) -> Tensors:
    rng = np.random.default_rng([number, inputs])
    survey = {"gradient": rng.normal(0, 1, (7, 11))}
    if inputs:
        for kind in ("mean", "variance"):
            values = rng.random(inputs)
            survey |= {f"{kind}.b": values[:3], f"{kind}.a": values[3:]}
    return {f"response/survey.{name}": values.astype(np.float32) for name, values in survey.items()}


def _scale_of(inputs: int) -> SurveyScale:
    rng = np.random.default_rng(inputs)
    return SurveyScale(
        tuple(rng.normal(0, 0.2, inputs).tolist()),
        tuple((0.5 + rng.random(inputs)).tolist()),
        tuple(rng.normal(0, 0.05, WIDTH).tolist()),
        (1.25, 0.9) if inputs else (1.1,),
    )


def _axis(number: int, scale: SurveyScale) -> tuple[float, ...]:
    axis = np.random.default_rng([number, 3]).normal(0, 1, scale.width)
    return tuple((axis / np.linalg.norm(axis)).tolist())


def survey_verbs(inputs: int) -> list[SurveySum | TellGroup]:
    scale = _scale_of(inputs)
    planes = tuple(
        Plane(node, _axis(number, scale), 0.05 * number - 0.1)
        for number, node in enumerate(("", "0", "1", "10", "11"))
    )
    axes = tuple(Axis(_axis(9 + n, scale), 0.03 * n, 0.2 + 0.1 * n) for n in range(12))
    by_node = {plane.node: plane for plane in planes}
    return [
        SurveySum("scale"),
        SurveySum("moments", "", scale),
        SurveySum("density", "", scale, axes=axes),
        *(SurveySum("moments", side, scale, (by_node[""],)) for side in "01"),
        *(
            SurveySum("density", node, scale, (by_node[""], by_node[node[0]]), axes[:1])
            for node in ("00", "01", "10", "11")
        ),
        TellGroup(scale, planes[:1]),
        TellGroup(scale, planes),
    ]


def _surveys() -> list[dict[str, Any]]:
    rows = []
    for number, inputs, others in ((1, 0, 0), (1, 5, 5), (2, 5, 5), (1, 40, 40), (1, 5, 6)):
        survey = vector_survey(number, inputs)
        for verb in survey_verbs(others):
            row: dict[str, Any] = {
                "survey": {key: _bits(value.ravel()) for key, value in survey.items()},
                "verb": encode_verb(verb),
                "problem": None,
            }
            try:
                measured = measured_in(survey)
                if isinstance(verb, TellGroup):
                    row["node"] = node_of(coordinates(measured, verb.scale), verb.planes)
                else:
                    numbers = numbers_of_survey(verb, measured)
                    row["numbers"] = {key: _bits(each) for key, each in numbers.items()}
                    row["parts"] = {
                        name: [part.count, part.clip]
                        for name, part in parts_of(verb, inputs).items()
                    }
            except Malformed as error:
                row["problem"] = str(error)
            rows.append(row)
    return rows


def encode_verb(verb: SurveySum | TellGroup) -> str:
    """Return a verb as JSON."""
    return msgspec.json.encode(verb).decode()


def _roundings() -> list[dict[str, Any]]:
    rows = []
    for number, verb in enumerate(survey_verbs(5)):
        if isinstance(verb, SurveySum):
            seed = _bytes(b"rounding %d" % number, SEED_BYTES)
            draw = rounding_of(seed, A, verb)
            drawn = [draw(count) for count in (4, 400, 12)]
            rows.append(
                {"seed": seed.hex(), "bundle": A, "verb": encode_verb(verb)}
                | {"drawn": [digest(each) for each in drawn]}
            )
    return rows


def _hostile_surveys() -> list[str]:
    """Verbs with fields that do not fit each other."""
    good: list[dict[str, Any]] = [msgspec.to_builtins(verb) for verb in survey_verbs(5)]
    scale, moments, density, side, *_, tell, tree = good
    units = moments["scale"]
    changes: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        (scale, {"scale": units}),
        (scale, {"node": "0"}),
        (scale, {"kind": "sums"}),
        (moments, {"scale": None}),
        (moments, {"axes": density["axes"]}),
        (moments, {"node": "0"}),
        (moments, {"node": "2"}),
        (moments, {"node": "0000000"}),
        (moments, {"scale": units | {"mean": units["mean"][1:]}}),
        (moments, {"scale": units | {"origin": units["origin"][1:]}}),
        (moments, {"scale": units | {"spreads": [1.0]}}),
        (moments, {"scale": units | {"spreads": [1.0, 0.0]}}),
        (moments, {"scale": units | {"deviation": [-1.0] * 5}}),
        (density, {"axes": []}),
        (density, {"axes": [density["axes"][0]] * 13}),
        (density, {"axes": [density["axes"][0] | {"deviation": 0.0}]}),
        (density, {"axes": [density["axes"][0] | {"axis": [1.0]}]}),
        (side, {"planes": []}),
        (side, {"planes": side["planes"] * 2}),
        (side, {"planes": [side["planes"][0] | {"axis": [1.0]}]}),
        (tell, {"planes": []}),
        (tell, {"planes": tell["planes"] * 2}),
        (tell, {"planes": tree["planes"][1:]}),
        (tell, {"scale": None}),
    )
    return [json.dumps(verb | change) for verb, change in changes]


def text() -> str:
    """Return the file."""
    return (
        json.dumps(
            {
                "integers": _integers(),
                "masks": _masks(),
                "sealed": _sealed(),
                "device": {
                    "id": DEVICE,
                    "private": private_der(DEVICE_KEY),
                    "public": public_der(DEVICE_KEY.public_key()),
                },
                "plans": _plans(),
                "numbers": _numbers(),
                "check_ins": _check_ins(),
                "surveys": _surveys(),
                "roundings": _roundings(),
                "hostile_surveys": _hostile_surveys(),
                "answers": [_answer(case, number) for number, case in enumerate(CASES, start=1)],
            }
        )
        + "\n"
    )
