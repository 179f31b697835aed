"""Writes ``wire/schema.json`` and the vectors: run ``python -m tests.wire.write_vectors`` after a change of the protocol."""

import json
import struct
from pathlib import Path

import msgspec
import numpy as np

import wire
from wire import messages as m
from wire.codec import encode, encode_update
from wire.tensors import encode_tensors

ROOT = Path(wire.__file__).parent
SCHEMA, GOLDEN, HOSTILE, NAMES = (ROOT / path for path in ("schema.json", "vectors/golden", "vectors/hostile", "vectors/names.json"))
A, B = "a" * 64, "b" * 64

MESSAGES: dict[str, m.Message] = {
    "check-in": m.CheckIn("p01-left", 160, 63, A, "shoal", "onnxruntime", 87.5, True),
    "decline": m.Decline("run-1", 3, "p01-left", "bundle watch: version 1 offered, version 2 was loaded before"),
    "fetch": m.Fetch("p01-left", A),
    "status": m.DeviceStatus("p01-left", False),
    "aggregator": m.AggregatorStatus(True, "0123456789abcdef", "run-1"),
    "plan": m.Plan(
        "run-1",
        3,
        "p01-left",
        A,
        B,
        (m.Evaluate(), m.Evaluate("train", "survey", "initial"), m.Train(32, 1, hyper={"lr": 0.01})),
        3000012,
        1.5e9,
    ),
    "plan-steps": m.Plan("run-1", 4, "p01-left", A, B, (m.Train(16, 1, 100), m.Annotate("ratio", "weight"), m.Respond(A)), 1, 0.25),
    "acknowledge": m.Acknowledge("run-1", 3),
    "refuse": m.Refuse("not-finite", "tensor 'delta/head.bias' holds values that are not finite", "run-1", 3),
    "finish": m.Finish("run-1", A, B),
}
UPDATE = m.Update("run-1", 3, "p01-left", B, 160, 5, m.Metrics(63, 41.25, 50), m.Metrics(160, 80.5, 120), 101_234, 0.125)
UPDATE_TENSORS = {
    "delta/head.weight": np.array([[0.5, -0.25], [1.0, 0.0]], np.float32),
    "statistic/norm.running_mean": np.array([1.5], np.float32),
}
PARSED: list[tuple[str, str, str, str, bool, bool]] = [
    ("shared/head.weight", "shared", "head.weight", "shared/head.weight", True, False),
    ("shared/a/b.weight", "shared", "a/b.weight", "shared/a/b.weight", True, False),
    ("shared/log_variance", "shared", "log_variance", "shared/log_variance", True, False),
    ("shared/my_running_var", "shared", "my_running_var", "shared/my_running_var", True, False),
    ("shared/variance.running_var", "shared", "variance.running_var", "shared/variance.running_var", True, False),
    ("shared/next/w", "shared", "next/w", "shared/next/w", True, False),
    ("statistic/norm.running_mean", "statistic", "norm.running_mean", "statistic/norm.running_mean", True, False),
    ("statistic/norm.running_var", "statistic", "norm.running_var", "statistic/norm.running_var", True, True),
    ("statistic/running_var", "statistic", "running_var", "statistic/running_var", True, True),
    ("statistic/variance.running_mean", "statistic", "variance.running_mean", "statistic/variance.running_mean", True, False),
    ("statistic/running_var.scale", "statistic", "running_var.scale", "statistic/running_var.scale", True, False),
    ("statistics/norm.running_var", "statistics", "norm.running_var", "statistics/norm.running_var", False, False),
    ("private/bias", "private", "bias", "private/bias", False, False),
    ("private/personal.norm.running_var", "private", "personal.norm.running_var", "private/personal.norm.running_var", False, False),
    ("slot/momentum.head.weight", "slot", "momentum.head.weight", "slot/momentum.head.weight", False, False),
    ("received/consensus", "received", "consensus", "received/consensus", False, False),
    ("received/start.head.weight", "received", "start.head.weight", "received/start.head.weight", False, False),
    ("delta/head.weight", "delta", "head.weight", "delta/head.weight", False, False),
    ("delta/log_variance.weight", "delta", "log_variance.weight", "delta/log_variance.weight", False, False),
    ("delta/variance.weight", "delta", "variance.weight", "delta/variance.weight", False, False),
    ("delta/norm.running_var", "delta", "norm.running_var", "delta/norm.running_var", False, False),
    ("response/predict", "response", "predict", "response/predict", False, False),
    ("response/variance", "response", "variance", "response/variance", False, False),
    ("response/survey.gradient", "response", "survey.gradient", "response/survey.gradient", False, False),
    ("response/survey.mean.norm", "response", "survey.mean.norm", "response/survey.mean.norm", False, False),
    ("response/survey.variance.norm", "response", "survey.variance.norm", "response/survey.variance.norm", False, True),
    ("response/survey.mean.variance.norm", "response", "survey.mean.variance.norm", "response/survey.mean.variance.norm", False, False),
    ("response/survey.mean.running_var", "response", "survey.mean.running_var", "response/survey.mean.running_var", False, False),
    ("response/conclude.change.variance.w", "response", "conclude.change.variance.w", "response/conclude.change.variance.w", False, False),
    ("response/survey.variance", "response", "survey.variance", "response/survey.variance", False, False),
    ("batch/x", "batch", "x", "batch/x", False, False),
    ("batch/uniform/extractor.6", "batch", "uniform/extractor.6", "batch/uniform/extractor.6", False, False),
    ("hyper/lr", "hyper", "lr", "hyper/lr", False, False),
    ("uniform/extractor.6", "uniform", "extractor.6", "uniform/extractor.6", False, False),
    ("normal/gradient", "normal", "gradient", "normal/gradient", False, False),
    ("next/shared/head.weight", "next", "shared/head.weight", "shared/head.weight", False, False),
    ("next/statistic/norm.running_var", "next", "statistic/norm.running_var", "statistic/norm.running_var", False, False),
    ("metric/loss_sum", "metric", "loss_sum", "metric/loss_sum", False, False),
    ("metric/variance.norm", "metric", "variance.norm", "metric/variance.norm", False, False),
    ("output/probabilities", "output", "probabilities", "output/probabilities", False, False),
    ("column/weight", "column", "weight", "column/weight", False, False),
    ("kept/statistic/norm.running_var", "kept", "statistic/norm.running_var", "kept/statistic/norm.running_var", False, False),
]
"""A name, its role, its name within the role, itself without ``next/``, whether it is exchanged, and whether it is a variance."""
BUILT: list[tuple[str, list[str], str]] = [
    ("shared", ["head.weight"], "shared/head.weight"),
    ("statistic", ["norm.running_var"], "statistic/norm.running_var"),
    ("private", ["bias"], "private/bias"),
    ("slot", ["momentum.head.weight"], "slot/momentum.head.weight"),
    ("received", ["consensus"], "received/consensus"),
    ("received_start", ["head.weight"], "received/start.head.weight"),
    ("started_from", ["received/start.head.weight"], "shared/head.weight"),
    ("delta", ["head.weight"], "delta/head.weight"),
    ("response", ["survey", "variance.norm"], "response/survey.variance.norm"),
    ("response", ["predict"], "response/predict"),
    ("batch", ["weight"], "batch/weight"),
    ("hyper", ["lr"], "hyper/lr"),
    ("uniform", ["extractor.6"], "uniform/extractor.6"),
    ("normal", ["gradient"], "normal/gradient"),
    ("following", ["shared/head.weight"], "next/shared/head.weight"),
    ("metric", ["loss_sum"], "metric/loss_sum"),
    ("output", ["probabilities"], "output/probabilities"),
    ("column", ["weight"], "column/weight"),
    ("kept", ["shared/head.weight"], "kept/shared/head.weight"),
]
"""A function that builds a name, its arguments, and the name."""


def names_text() -> str:
    """The vectors of tensor names, one a line."""
    fields = ("key", "role", "name", "without_next", "is_exchanged", "is_variance")
    parsed = ",\n".join("  " + json.dumps(dict(zip(fields, row, strict=True))) for row in PARSED)
    built = ",\n".join("  " + json.dumps({"function": function, "arguments": given, "key": key}) for function, given, key in BUILT)
    return f'{{\n "parsed": [\n{parsed}\n ],\n "built": [\n{built}\n ]\n}}\n'


def schema_text() -> str:
    """The JSON Schema of every message."""
    schemas, components = msgspec.json.schema_components([m.Message], ref_template="#/$defs/{name}")
    return json.dumps({**schemas[0], "$defs": components}, indent=1, sort_keys=True) + "\n"


def _raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _f32(shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


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
    "shape-of-floats": _raw({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}, b"\0" * 4),
    "shape-promises-a-terabyte": _raw({"a": _f32([2**20, 2**20], 0, 4)}, b"\0" * 4),
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
    "not-utf8": b'{"type":"acknowledge","run_id":"\xff","round":1}',
    "round-zero": b'{"type":"acknowledge","run_id":"r","round":0}',
    "round-huge": b'{"type":"acknowledge","run_id":"r","round":99999999999999999999}',
    "round-a-float": b'{"type":"acknowledge","run_id":"r","round":1.5}',
    "name-with-slash": b'{"type":"fetch","device_id":"../x","digest":"' + b"a" * 64 + b'"}',
    "digest-upper-case": b'{"type":"fetch","device_id":"d","digest":"' + b"A" * 64 + b'"}',
    "deeply-nested": b'{"type":' * 3000 + b"1" + b"}" * 3000,
    "too-long": b'{"type":"acknowledge","run_id":"r","round":1,"x":"' + b"x" * 70_000 + b'"}',
}


def main() -> None:
    """Write everything."""
    SCHEMA.write_text(schema_text())
    NAMES.write_text(names_text())
    for folder in (GOLDEN, HOSTILE):
        folder.mkdir(parents=True, exist_ok=True)
    for name, message in MESSAGES.items():
        (GOLDEN / f"{name}.json").write_bytes(encode(message))
    (GOLDEN / "update.safetensors").write_bytes(encode_update(UPDATE, UPDATE_TENSORS))
    (GOLDEN / "tensors.safetensors").write_bytes(encode_tensors({"a": np.arange(3, dtype=np.int64), "b": np.array(True)}))
    for name, payload in HOSTILE_TENSORS.items():
        (HOSTILE / f"{name}.safetensors").write_bytes(payload)
    for name, payload in HOSTILE_MESSAGES.items():
        (HOSTILE / f"{name}.json").write_bytes(payload)


if __name__ == "__main__":
    main()
