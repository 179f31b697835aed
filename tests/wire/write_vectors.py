"""Writes ``wire/schema.json`` and the vectors: run ``python -m tests.wire.write_vectors`` after a
change of the protocol."""

import json
import struct

import msgspec
import numpy as np

from tests.wire import (
    broker_vectors,
    checkpoint_vectors,
    comparison_vectors,
    drift_vectors,
    enrolment_vectors,
    epochs_vectors,
    error_vectors,
    holdout_vectors,
    ids_vectors,
    label_vectors,
    names_vectors,
    padding_vectors,
    personal_model_vectors,
    policy_vectors,
    private_vectors,
    quantised_vectors,
    question_vectors,
    ranks_vectors,
    recordings_vectors,
    secret_vectors,
    session_vectors,
    signature_vectors,
    signed_vectors,
    starts_vectors,
    stream_vectors,
    task_vectors,
    time_vectors,
)
from tests.wire.signed_vectors import ROOT, RUN, VECTORS, A, B
from wire import messages as m
from wire.arrays.tensors import encode_tensors
from wire.codec import encode, encode_update

SCHEMA = ROOT / "schema.json"
GOLDEN, HOSTILE, NEWER = (VECTORS / name for name in ("golden", "hostile", "newer"))
POLICY = m.Policy(
    verbs=("train", "evaluate", "protect"),
    max_epochs=5.5,
    max_clip_norm=1.0,
    min_noise_multiplier=0.5,
    min_windows=20,
)
PIECES = m.Pieces(A, 1_048_577, 524_288, (A, B, A))

MESSAGES: dict[str, m.Message] = {
    "check-in": m.CheckIn("p01-left", 160, 63, A, "shoal 0.1.0", "onnxruntime", 87.5, True),
    "check-in-health": m.CheckIn(
        "p01-left",
        160,
        63,
        hardware="Raspberry Pi 4 Model B Rev 1.4",
        free_bytes=12_345_678_901,
        temperature_c=41.5,
        charging=True,
        idle=False,
        classes=(100, 0, 60),
        policy=m.Policy(tell_classes=True),
    ),
    "check-in-start": m.CheckIn("p01-left", 160, 63, start=12, instance=2**53),
    "refuse-second": m.Refuse("p01-left", "second-device", "start 3", "check-in", instance=2**53),
    "check-in-moved": m.CheckIn("p01-left", 160, 63, moved=True),
    "check-in-encodings": m.CheckIn("p01-left", 160, 63, encodings=("int8", "one-bit")),
    "check-in-personal-models": m.CheckIn("p01-left", 160, 63, personal_models=(A, B)),
    "check-in-versions": m.CheckIn(
        "p01-left", 160, 63, client="shoal 0.1.0", protocol="1.1", app="3.14.0 (271)"
    ),
    "check-in-silent": m.CheckIn("p01-left", 160, 63, policy=m.Policy(report_errors=False)),
    "check-in-policy": m.CheckIn("p01-left", 160, 63, policy=POLICY),
    "check-in-unreported": m.CheckIn("p01-left", 160, 63, policy=m.Policy(unreported=("choose",))),
    "decline": m.Decline(
        RUN,
        1795305600,
        3,
        0,
        "p01-left",
        "bundle",
        "bundle watch: version 1 offered, version 2 was loaded before",
    ),
    "decline-outdated": m.Decline(
        RUN, 1795305600, 3, 1, "p01-left", "outdated", "the plan has the verb distil"
    ),
    "error": error_vectors.FULL,
    "error-killed": m.ErrorReport("p01-left", 0.0, "Client ended", "Killed"),
    "decline-stale": m.Decline(
        RUN,
        1795305600,
        3,
        1,
        "p01-left",
        "stale",
        "epoch 1795305600, 1795305601 was here",
        "{}\nQQ==\n{}\nQQ==",
    ),
    "fetch": m.Fetch("p01-left", A),
    "pieces": PIECES,
    "offer": m.Offer("p01-left", RUN, 3, PIECES),
    "piece": m.Piece("p01-left", A, 3),
    "want": m.Want("p01-left", A, (0, 3)),
    "status": m.DeviceStatus("p01-left", False),
    "status-online": m.DeviceStatus("p01-left", True, at_s=1795305612.25),
    "status-withdrawn": m.DeviceStatus("p01-left", False, "00112233445566778899aabbccddeeff"),
    "aggregator": m.AggregatorStatus(True, "0123456789abcdef", 1795305600, 1795305612.25, RUN),
    "aggregator-paused": m.AggregatorStatus(
        True, "0123456789abcdef", 1795305600, 1795305612.25, RUN, "the disk is full"
    ),
    "plan": m.Plan(
        RUN,
        1795305600,
        3,
        0,
        "p01-left",
        A,
        B,
        (
            m.Evaluate(),
            m.Evaluate("train", "survey", "initial"),
            m.Train(32, 1, hyper={"lr": 0.01}),
        ),
        3000012,
        1.5e9,
    ),
    "plan-steps": m.Plan(
        RUN,
        1795305600,
        4,
        2,
        "p01-left",
        A,
        B,
        (m.Train(16, 1, 100), m.Annotate("ratio", "weight"), m.Respond(A)),
        1,
        0.25,
    ),
    "plan-int8": m.Plan(
        RUN, 1795305600, 4, 0, "p01-left", A, B, (m.Train(16, 1),), 3000013, 1.5e9, "int8"
    ),
    "acknowledge": m.Acknowledge("p01-left", A),
    "refuse": m.Refuse(
        "p01-left",
        "not-finite",
        "tensor 'delta/head.bias' holds values that are not finite",
        "update",
        A,
    ),
    "refuse-status": m.Refuse(
        "p01-left", "unknown-device", "it has not checked in: it is to do so", "status"
    ),
    "refuse-fetch": m.Refuse(
        "p01-left", "unknown-blob", "blob aaaaaaaaaaaa is not on offer", "fetch"
    ),
    "busy": m.Busy("p01-left", A, 30.0),
    "finish": m.Finish("p01-left", RUN, 1795305600, A, B, number=7),
    "finish-releases": m.Finish("p01-left", RUN, 1795305600, A, B, True),
    "in-use": m.InUse(
        "p01-left", 7, 7, "", m.Metrics(63, 41.25, 50), m.Metrics(63, 52.5, 44), 1.25, 0, model=B
    ),
    "in-use-without-number": m.InUse("p01-left", 0, 7, model=A),
    "in-use-alone": m.InUse(
        "p01-left",
        7,
        7,
        alone="the personal model of campaign r was made from model bbbbbbbbbbbb, "
        "not from this one",
    ),
    "in-use-failed": m.InUse("p01-left", 6, 7, "bundle watch: signed by no trusted key"),
    "release": m.Release("p01-left", 1795305600, 7, "1", RUN, A, B),
    "voucher": m.Voucher("default", A, 1826841600.0),
}
UPDATE = m.Update(
    RUN,
    1795305600,
    3,
    0,
    "p01-left",
    B,
    160,
    5,
    m.Metrics(63, 41.25, 50),
    m.Metrics(160, 80.5, 120),
    101_234,
    0.125,
)
UPDATE_TENSORS = {
    "delta/head.weight": np.array([[0.5, -0.25], [1.0, 0.0]], np.float32),
    "statistic/norm.running_mean": np.array([1.5], np.float32),
}


def schema_text() -> str:
    """The JSON Schema of every message."""
    schemas, components = msgspec.json.schema_components([m.Message], ref_template="#/$defs/{name}")
    return json.dumps({**schemas[0], "$defs": components}, indent=1, sort_keys=True) + "\n"


def _raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _f32(shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


def _decline(number: bytes) -> bytes:
    return (
        b'{"type":"decline","run_id":"r","epoch":1,"round":%b,"attempt":0,"device_id":"d",'
        b'"reason":"data","detail":""}'
    ) % number


_ONE = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
HOSTILE_TENSORS = {
    "empty": b"",
    "seven-bytes": b"\0" * 7,
    "header-longer-than-file": struct.pack("<Q", 1000) + b"{}",
    "header-length-2-to-63": struct.pack("<Q", 2**63) + b"{}",
    "header-not-json": _raw(b"not json"),
    "header-not-utf8": _raw(b'{"\xff\xfe": 1}'),
    "header-a-list": _raw([]),
    "header-deeply-nested": _raw(b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "dtype-a-list": _raw({"a": {"dtype": [], "shape": [], "data_offsets": [0, 0]}}),
    "dtype-unknown": _raw({"a": {"dtype": "Q77", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
    "shape-negative": _raw({"a": _f32([-1], 0, 4)}, b"\0" * 4),
    "shape-of-floats": _raw(
        {"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}, b"\0" * 4
    ),
    "shape-a-lone-surrogate": _raw(b'{"a":{"dtype":"F32","shape":"\\ud800","data_offsets":[0,0]}}'),
    "dtype-a-lone-surrogate": _raw(b'{"a":{"dtype":"\\ud800","shape":[],"data_offsets":[0,0]}}'),
    "name-a-lone-surrogate": _raw(b'{"\\ud800":%b}' % _ONE, b"\0" * 4),
    "message-a-lone-surrogate": _raw(
        b'{"__metadata__":{"shoal":"\\ud800"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,'
        b"4]}}",
        b"\0" * 4,
    ),
    "shape-promises-a-terabyte": _raw({"a": _f32([2**20, 2**20], 0, 4)}, b"\0" * 4),
    "shape-empty-and-endless": _raw({"a": _f32([0, 2**40, 2**40], 0, 0)}),
    "offsets-missing": _raw({"a": {"dtype": "F32", "shape": [1]}}, b"\0" * 4),
    "offsets-three": _raw(
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, b"\0" * 8
    ),
    "offsets-overlap": _raw({"a": _f32([2], 0, 8), "b": _f32([2], 4, 12)}, b"\0" * 12),
    "offsets-backwards": _raw({"a": _f32([1], 4, 0)}, b"\0" * 4),
    "offsets-leave-a-hole": _raw({"a": _f32([1], 0, 4), "b": _f32([1], 8, 12)}, b"\0" * 12),
    "offsets-beyond-the-file": _raw({"a": _f32([4], 0, 16)}, b"\0" * 8),
    "data-left-over": _raw({"a": _f32([1], 0, 4)}, b"\0" * 8),
    "nine-dimensions": _raw({"a": _f32([1] * 9, 0, 4)}, b"\0" * 4),
    "metadata-not-text": _raw({"__metadata__": {"shoal": 5}, "a": _f32([1], 0, 4)}, b"\0" * 4),
    "five-thousand-tensors": _raw({f"t{i}": _f32([0], 0, 0) for i in range(5000)}),
}
HOSTILE_MESSAGES = {
    "truncated": b'{"type":"plan","run_id":"r"',
    "unknown-type": b'{"type":"reboot"}',
    "no-type": b'{"run_id":"r","round":1}',
    "a-list": b"[1,2,3]",
    "not-utf8": b'{"type":"fetch","device_id":"\xff","digest":"' + b"a" * 64 + b'"}',
    "round-zero": _decline(b"0"),
    "round-huge": _decline(b"99999999999999999999"),
    "round-a-float": _decline(b"1.5"),
    "lone-surrogate": b'{"type":"refuse","device_id":"d","reason":"malformed","detail":"\\ud800"}',
    "policy-negative": b'{"type":"check-in","device_id":"d","num_train":1,"num_test":1,'
    b'"policy":{"max_epochs":-1}}',
    "charging-a-number": b'{"type":"check-in","device_id":"d","num_train":1,"num_test":1,'
    b'"charging":1}',
    "classes-negative": b'{"type":"check-in","device_id":"d","num_train":1,"num_test":1,'
    b'"classes":[3,-1]}',
    "classes-too-many": b'{"type":"check-in","device_id":"d","num_train":1,"num_test":1,'
    b'"classes":[%b0]}' % (b"0," * 1000),
    "temperature-of-the-sun": b'{"type":"check-in","device_id":"d","num_train":1,"num_test":1,'
    b'"temperature_c":5500}',
    "encodings-no-name": b'{"type":"check-in","device_id":"d","num_train":1,"num_test":1,'
    b'"encodings":["in t8"]}',
    "encodings-too-many": b'{"type":"check-in","device_id":"d","num_train":1,"num_test":1,'
    b'"encodings":[%b"a"]}' % (b'"a",' * 16),
    "encoding-unknown": b'{"type":"plan","run_id":"r","epoch":1,"round":1,"attempt":0,'
    b'"device_id":"d","bundle":"%b","model":"%b",'
    b'"verbs":[],"seed":1,"deadline_at_s":1.0,"encoding":"int4"}' % (b"a" * 64, b"a" * 64),
    "error-without-type": b'{"type":"error","device_id":"d","at_s":1.0,"what":"x"}',
    "error-frames-too-many": b'{"type":"error","device_id":"d","at_s":1.0,"what":"x","error":"E",'
    b'"frames":[%b"f"]}' % (b'"f",' * 32),
    "error-frame-too-long": b'{"type":"error","device_id":"d","at_s":1.0,"what":"x","error":"E",'
    b'"frames":["%b"]}' % (b"f" * 1001),
    "error-memory-negative": b'{"type":"error","device_id":"d","at_s":1.0,"what":"x","error":"E",'
    b'"peak_bytes":-1}',
    "pieces-none": b'{"type":"pieces","digest":"%b","num_bytes":1,"piece_bytes":65536,"pieces":[]}'
    % (b"a" * 64),
    "pieces-too-small": b'{"type":"pieces","digest":"%b","num_bytes":1,"piece_bytes":1,'
    b'"pieces":["%b"]}' % (b"a" * 64, b"a" * 64),
    "pieces-too-many": b'{"type":"pieces","digest":"%b","num_bytes":9,"piece_bytes":65536,'
    b'"pieces":[%b]}' % (b"a" * 64, b",".join([b'"%b"' % (b"a" * 64)] * 513)),
    "want-negative": b'{"type":"want","device_id":"d","update":"%b","pieces":[-1]}' % (b"a" * 64),
    "piece-beyond": b'{"type":"piece","device_id":"d","update":"%b","index":512}' % (b"a" * 64),
    "name-with-slash": b'{"type":"fetch","device_id":"../x","digest":"' + b"a" * 64 + b'"}',
    "digest-upper-case": b'{"type":"fetch","device_id":"d","digest":"' + b"A" * 64 + b'"}',
    "name-with-line-feed": b'{"type":"fetch","device_id":"d\\n","digest":"' + b"a" * 64 + b'"}',
    "name-a-line-feed": b'{"type":"fetch","device_id":"\\n","digest":"' + b"a" * 64 + b'"}',
    "digest-with-line-feed": b'{"type":"fetch","device_id":"d","digest":"' + b"a" * 64 + b'\\n"}',
    "no-digest-but-a-line-feed": b'{"type":"check-in","device_id":"d","num_train":1,"num_test":1,'
    b'"bundle":"\\n"}',
    "refused-digest-with-line-feed": b'{"type":"refuse","device_id":"d","reason":"malformed",'
    b'"detail":"","update":"' + b"a" * 64 + b'\\n"}',
    "policy-name-with-line-feed": b'{"type":"check-in","device_id":"d","num_train":1,"num_test":1,'
    b'"policy":{"graphs":["step\\n"]}}',
    "reason-unknown": b'{"type":"refuse","device_id":"d","reason":"too-many","detail":""}',
    "deeply-nested": b'{"type":' * 3000 + b"1" + b"}" * 3000,
    "too-long": b'{"type":"fetch","device_id":"d","digest":"'
    + b"a" * 64
    + b'","x":"'
    + b"x" * 70_000
    + b'"}',
}


FILES = (
    broker_vectors,
    checkpoint_vectors,
    comparison_vectors,
    drift_vectors,
    enrolment_vectors,
    epochs_vectors,
    error_vectors,
    holdout_vectors,
    ids_vectors,
    personal_model_vectors,
    names_vectors,
    padding_vectors,
    policy_vectors,
    private_vectors,
    quantised_vectors,
    question_vectors,
    ranks_vectors,
    recordings_vectors,
    secret_vectors,
    session_vectors,
    signature_vectors,
    starts_vectors,
    stream_vectors,
    label_vectors,
    task_vectors,
    time_vectors,
)
"""The vectors that are a file each."""


def newer(message: m.Message) -> bytes:
    """A message as a later minor version may write it: with fields that this one does not know,
    also inside of others."""

    def add(value: object) -> object:
        if isinstance(value, dict):
            return {k: add(v) if k not in ("hyper",) else v for k, v in value.items()} | {
                "later": {"a": [1, None]}
            }
        return [add(v) for v in value] if isinstance(value, list) else value

    return json.dumps(add(json.loads(encode(message))), separators=(",", ":")).encode()


def main() -> None:
    """Write everything."""
    SCHEMA.write_text(schema_text())
    for vectors in FILES:
        vectors.FILE.write_text(vectors.text())
    for folder in (GOLDEN, HOSTILE, NEWER, signed_vectors.FOLDER):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
    for name, message in MESSAGES.items():
        (GOLDEN / f"{name}.json").write_bytes(encode(message))
        (NEWER / f"{name}.json").write_bytes(newer(message))
    (GOLDEN / "update.safetensors").write_bytes(encode_update(UPDATE, UPDATE_TENSORS))
    (GOLDEN / "tensors.safetensors").write_bytes(
        encode_tensors(
            {
                "a": np.arange(3, dtype=np.int64),
                "b": np.array(True),
                "c": np.array([-128, 127], np.int8),
                "d": np.array([255], np.uint8),
            }
        )
    )
    for name, payload in HOSTILE_TENSORS.items():
        (HOSTILE / f"{name}.safetensors").write_bytes(payload)
    for name, payload in HOSTILE_MESSAGES.items():
        (HOSTILE / f"{name}.json").write_bytes(payload)
    for name, payload in signed_vectors.FILES.items():
        (signed_vectors.FOLDER / name).write_bytes(payload)


if __name__ == "__main__":
    main()
