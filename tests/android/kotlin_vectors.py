"""Data from the Python side for Kotlin's tests: messages, tensor files, numbers, and updates of a
fake model.

`write` writes them into a folder for one test run.
"""

import json
import random
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
import numpy as np

from edge_client.core.ports import Windows
from edge_client.core.stream import StreamFilter, StreamSums
from edge_client.work.executor import Executor
from tests.android.closing_vectors import write_closing_cases
from tests.android.numpy_vectors import cases, lines
from tests.wire.changes import changed, refuses
from tests.wire.write_vectors import MESSAGES
from wire import messages as m
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors, TensorSpec, decode_tensors, encode_tensors
from wire.bundle import Graph, Manifest, Window, pack, unpack
from wire.codec import decode, digest, encode, encode_update
from wire.identity.keys import new_key, public_pem
from wire.identity.signed import vouch
from wire.secret.question import BITS, UPLOAD_BYTES, Part, Share, SignedShare, SumQuestion, most_of

F32 = np.float32


def write(folder: Path) -> None:
    """Write the vectors of one run."""
    rng = random.Random(2)
    (folder / "numpy.json").write_text(lines(cases(rng, 500, 2000)))
    (folder / "floats.txt").write_text("\n".join(_float_lines(rng)))
    (folder / "messages.jsonl").write_bytes(b"\n".join(encode(_message(rng)) for _ in range(300)))
    (folder / "verdicts.txt").write_text("\n".join(_verdicts(rng)))
    (folder / "tensors").mkdir()
    for number in range(40):
        (folder / "tensors" / f"{number}.safetensors").write_bytes(
            _tensor_file(np.random.default_rng(number))
        )
    write_executor_cases(folder / "executor")
    write_closing_cases(folder / "closing")


def _float_lines(rng: random.Random) -> list[str]:
    numbers = [struct.unpack("<d", rng.randbytes(8))[0] for _ in range(3000)]
    numbers += [rng.uniform(-1, 1) * 10.0 ** rng.randrange(-12, 20) for _ in range(2000)]
    numbers += [round(rng.uniform(0, 1000), rng.randrange(7)) for _ in range(1000)]
    numbers += [s * 2.0**e for e in range(-1074, 1024, 3) for s in (1, -1)]
    return [
        f"{struct.unpack('<Q', struct.pack('<d', x))[0]:x} {msgspec.json.encode(x).decode()}"
        for x in numbers
    ]


def _message(rng: random.Random) -> m.Message:
    """A message of the golden kinds with other values in it."""

    def text() -> str:
        return "".join(
            rng.choice('aZ09 "\\/\n\t\x01\x7fé€\u2028😀') for _ in range(rng.randrange(12))
        )

    def share() -> float:
        return rng.choice([0.0, 0.25, rng.random()])

    name, sha = f"d.{rng.randrange(10**6)}_-", f"{rng.getrandbits(256):064x}"
    hyper = {
        text(): rng.uniform(-1, 1) * 10.0 ** rng.randrange(-8, 18) for _ in range(rng.randrange(4))
    }
    verbs: list[m.Verb] = [
        m.Train(
            rng.randrange(2, 4097),
            rng.randrange(1, 9),
            rng.choice([None, 7, 2**31]),
            hyper,
            name,
            rng.random() < 0.5,
            share(),
            rng.choice([0, 9]),
        ),
        m.Evaluate(
            rng.choice(["train", "test", "holdout", "windows", "unlabelled"]),
            name,
            rng.choice(["received", "initial"]),
            share(),
            rng.random() < 0.5,
            rng.choice([0, 1, 256]),
        ),
        m.Choose((sha, "0" * 64), name),
        m.Annotate(name, name),
        m.Apply(name, rng.random() < 0.5),
        m.Respond(sha, name),
        m.Protect(rng.uniform(1e-9, 10), rng.choice([0.0, rng.random()])),
        m.Mask(_question(rng, sha)),
    ]
    count, number = rng.randrange(2**53 + 1), rng.randrange(1, 2**31 + 1)
    rng.shuffle(verbs)
    metrics = m.Metrics(count, rng.uniform(-1e9, 1e9), rng.randrange(100))
    epoch, attempt = rng.randrange(2**53 + 1), rng.randrange(9)
    names = tuple(name for _ in range(rng.randrange(3)))
    policy = m.Policy(
        rng.choice([None, names]),
        rng.choice([None, names]),
        rng.choice([None, names]),
        rng.choice(
            [m.Policy().max_epochs, rng.uniform(1e-9, 1e9)]
        ),  # the default itself: another object of its value is written
        rng.choice([None, rng.uniform(1e-9, 1e9)]),
        rng.choice([None, number]),
        rng.choice([None, rng.uniform(1e-9, 10)]),
        rng.choice([None, 0.0, rng.random()]),
        rng.choice([1, number]),
        unreported=rng.choice([None, names]),
        min_sum=rng.choice([None, number]),
    )
    health = rng.choice([None, rng.uniform(0, 100)]), rng.choice([None, True])
    work = name, epoch, number, attempt, name
    reason = rng.choice(get_args(m.DeclineReason))
    made: list[m.Message] = [
        m.CheckIn(
            name,
            count,
            3,
            rng.choice(["", sha]),
            text(),
            text(),
            *health,
            rng.choice([None, policy]),
            moved=rng.choice([True, False]),
            encodings=names,
            personal_models=rng.choice([None, (), (sha,)]),
        ),
        m.Fetch(name, sha),
        m.DeviceStatus(name, True, at_s=rng.uniform(0, 2e9)),
        m.AggregatorStatus(False, text(), epoch, rng.uniform(0, 2e9), text(), text()),
        m.Plan(
            *work,
            sha,
            sha,
            tuple(verbs[: rng.randrange(8)]),
            count,
            rng.uniform(0, 2e9),
            rng.choice(["float32", "int8"]),
        ),
        m.Update(
            *work,
            sha,
            count,
            5,
            metrics,
            metrics,
            count,
            rng.random(),
            rng.choice([None, _share(rng, name, sha)]),
        ),
        m.Decline(*work, reason, text(), text()),
        m.Refuse(
            name,
            rng.choice(["malformed", "norm-too-large", "unknown-blob"]),
            text(),
            text(),
            rng.choice(["", sha]),
        ),
        m.Acknowledge(name, sha),
        m.Busy(name, sha, rng.uniform(0, 3600)),
        m.Finish(name, name, epoch, sha, sha, number=count),
        m.Voucher(name, sha, rng.uniform(0, 2e9)),
        *MESSAGES.values(),
    ]
    return rng.choice(made)


def _question(rng: random.Random, sha: str) -> SumQuestion:
    parts = {f"shared/{at}": Part(rng.randrange(1, 2**31), rng.random() + 1e-9) for at in range(2)}
    bits: Any = rng.choice(BITS)
    most, min_sum = rng.randrange(1, most_of(bits) + 1), rng.randrange(1, 2**31)
    return SumQuestion(sha, parts, bits, most, min_sum, (sha,) * rng.randrange(1, 5), 1.5e9)


def _share(rng: random.Random, name: str, sha: str) -> SignedShare:
    sealed = tuple(rng.randbytes(rng.randrange(6)) for _ in range(rng.randrange(4)))
    return SignedShare(Share(sha, name, rng.randbytes(UPLOAD_BYTES), sha, sealed), "00")


def _verdicts(rng: random.Random) -> list[str]:
    """Messages and tensor files changed at random, in hexadecimal, and whether Python reads or
    refuses them.

    Left out are messages in which a key comes twice, and those that Python reads though they are
    not UTF-8: msgspec does not look at keys that it does not know.
    """
    lines = []
    for _ in range(6000):
        payload = changed(encode(_message(rng)), rng)
        refused = refuses(decode, payload, m.Message)
        if not _ambiguous(payload) or (refused and not _utf8(payload)):
            lines.append(f"{'refused' if refused else 'read'} message {payload.hex()}")
    for number in range(3000):
        payload = changed(_tensor_file(np.random.default_rng(number)), rng)
        lines.append(
            f"{'refused' if refuses(decode_tensors, payload) else 'read'} tensors {payload.hex()}"
        )
    return lines


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise LookupError("a key comes twice")
    return dict(pairs)


def _utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _ambiguous(payload: bytes) -> bool:
    """Return True if a key comes twice, or the bytes are not UTF-8."""
    try:
        json.loads(payload, object_pairs_hook=_once)
    except (UnicodeDecodeError, LookupError):
        return True
    except ValueError:
        return False
    return False


def _tensor_file(rng: np.random.Generator) -> bytes:
    dtypes = [np.float32, np.int64, np.int32, np.uint8, np.int8, np.bool_]
    tensors: Tensors = {}
    for _ in range(rng.integers(0, 8)):
        name = "".join(rng.choice(list('ab/."\\é￿😀\n')) for _ in range(rng.integers(1, 8)))
        shape = rng.integers(0, 4, rng.integers(0, 5))
        tensors[name] = rng.integers(-5, 5, shape).astype(dtypes[rng.integers(6)])
    return encode_tensors(tensors, rng.choice([b"", '{"x":"é\\n"}'.encode()]))


RESPONSES: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    "survey": (("gradient", (2, 3)), ("weight", ())),
    "double": (("norm", ()),),
    "places": (("place", ()), ("count", ()), ("holdout", ()), ("label", ())),
    "shift": (("first", ()),),
}
MOVED = (
    "slot/m",
    "shared/w",
    "shared/b",
    "statistic/n.running_mean",
    "statistic/n.running_var",
    "private/p",
)
SUMS = ("metric/loss_sum", "metric/num_correct")
PLACES = {"places": ("metric/place", "metric/count", "metric/holdout", "metric/label")}
SHIFT = {
    "shift": ("next/shared/b", "next/statistic/n.running_mean", "next/memory/k", "metric/first")
}
READ = {"shift": ("response/places.holdout",)}
EXAMPLES = {"weigh": ("output/weight",), "predict": ("output/probabilities",)}
STEP = {
    "step": (*(names.following(key) for key in MOVED), *SUMS),
    "double": ("next/private/p", "metric/norm"),
}
OUTPUTS = {
    **STEP,
    **EXAMPLES,
    **PLACES,
    **SHIFT,
    "evaluate": SUMS,
    "survey": ("metric/gradient", "metric/weight"),
}
MANIFEST = Manifest(
    name="fake",
    version=3,
    algorithm="fake",
    created_by={"shoal": "0", "executorch": "1.3.0"},
    classes=("a", "b", "c"),
    window=Window(("u", "v"), 4, 4, 2.0),
    min_batch=2,
    hyper={"lr": 0.5, "mu": 0.5},
    tensors=(
        TensorSpec("w", "shared", "float32", (2, 3)),
        TensorSpec("b", "shared", "float32", (3,)),
        TensorSpec("n.running_mean", "statistic", "float32", (3,)),
        TensorSpec("n.running_var", "statistic", "float32", (3,)),
        TensorSpec("p", "private", "float32", (2,)),
        TensorSpec("m", "slot", "float32", (2, 3)),
        TensorSpec("k", "memory", "float32", (2,)),
        TensorSpec("c", "received", "float32", (1,)),
        TensorSpec("start.w", "received", "float32", (2, 3)),
    ),
    graphs={
        name: Graph(f"{name}.onnx", READ.get(name, ()), outputs, RESPONSES.get(name, ()))
        for name, outputs in OUTPUTS.items()
    },
    files={},
    columns={"weight": ()},
    random={"uniform/u": (2,), "normal/z": (2,)},
)
"""The fake model's bundle; its graphs are `FakeGraphs`, here and in Kotlin."""


class FakeGraphs:
    """Graphs of a few float32 operations that every machine rounds alike, and that notice in which
    order their examples come."""

    max_batch = None

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        """Run one of the graphs."""
        named: dict[str, Callable[[Tensors], Tensors]] = {
            "step": self._step,
            "evaluate": self._evaluate,
            "survey": self._survey,
            "weigh": lambda i: {"output/weight": _sums(i) / F32(64)},
            "double": lambda i: {
                "next/private/p": i["private/p"] * F32(2),
                "metric/norm": i["private/p"][0],
            },
            "predict": lambda i: {"output/probabilities": _probabilities(_sums(i))},
            "places": self._places,
            "shift": self._shift,
        }
        return {name: np.asarray(value, F32) for name, value in named[graph](inputs).items()}

    def _step(self, i: Tensors) -> Tensors:
        order, u, z = _order(i), i["batch/uniform/u"][-1, 1], i["batch/normal/z"][0]
        moment = i["slot/m"] * i["hyper/mu"] + order
        return {
            "next/slot/m": moment,
            "next/shared/w": i["shared/w"] - i["hyper/lr"] * moment + i["received/c"] * (u + z),
            "next/shared/b": i["shared/b"] + order * i["received/start.w"][0],
            "next/statistic/n.running_mean": i["statistic/n.running_mean"] * F32(0.5) + order,
            "next/statistic/n.running_var": i["statistic/n.running_var"] + (u - F32(0.75)),
            "next/private/p": i["private/p"] + F32(1),
            "metric/loss_sum": order * F32(3),
            "metric/num_correct": F32((i["batch/y"] % 2 == 0).sum()),
        }

    def _evaluate(self, i: Tensors) -> Tensors:
        size = F32(len(i["batch/y"]))
        return {
            "metric/loss_sum": np.abs(i["shared/w"][0, 0]) * size,
            "metric/num_correct": F32((i["batch/y"] == 1).sum()),
        }

    def _places(self, i: Tensors) -> Tensors:
        """Sums that tell each window's place, its class and its examples apart; whole numbers."""
        sums = _sums(i).astype(np.float64)
        place = (sums + 1) * i["batch/rank"]
        holdout, label = (sums * i["batch/holdout"]).sum(), (sums * i["batch/y"]).sum()
        return {
            "metric/place": place.sum(),
            "metric/count": i["batch/count"].sum(),
            "metric/holdout": holdout,
            "metric/label": label,
        }

    def _shift(self, i: Tensors) -> Tensors:
        """Moves the model by what ``places`` measured; a power of two keeps it dyadic."""
        moved = i["response/places.holdout"] / F32(64)
        following = {
            "next/shared/b": i["shared/b"] + moved,
            "next/statistic/n.running_mean": i["statistic/n.running_mean"] - moved,
        }
        remembered = {"next/memory/k": i["memory/k"] + moved * np.arange(2, dtype=F32)}
        return {**following, **remembered, "metric/first": i["shared/b"][0]}

    def _survey(self, i: Tensors) -> Tensors:
        weight = F32(i["batch/weight"].sum()) if "batch/weight" in i else F32(0)
        return {"metric/gradient": i["shared/w"] * _order(i), "metric/weight": weight}


def _sums(i: Tensors) -> Array:
    return np.asarray(i["batch/x"].sum((1, 2), dtype=np.float64), F32)


def _probabilities(sums: Array) -> Array:
    """Dyadic numbers, so that every machine rounds them alike: sums of eight whole numbers of at
    most eight."""
    first = F32(0.5) + sums / F32(256)
    return np.stack([first, (F32(1) - first) / F32(2), (F32(1) - first) / F32(2)], 1)


def _order(i: Tensors) -> Any:
    return F32((_sums(i).astype(np.float64) * np.arange(1, len(i["batch/x"]) + 1)).sum() / 2**16)


class ListedNoise:
    """A generator whose standard normal numbers are those of a list."""

    def __init__(self, numbers: list[float]) -> None:
        self._numbers = iter(numbers)

    def standard_normal(self, shape: Any, dtype: Any = np.float64) -> Array:
        """The next numbers."""
        return np.array([next(self._numbers) for _ in range(int(np.prod(shape)))], dtype).reshape(
            shape
        )


def _listed_noise(numbers: list[float], _plan: m.Plan) -> np.random.Generator:
    """`ListedNoise`, which has the one method of a generator that the executor calls."""
    return cast(np.random.Generator, ListedNoise(numbers))


def stream_case() -> Tensors:
    """Return windows x of a stream of lasting activities, begins_s in seconds, and the answers.

    After half of them comes a gap; a client that starts again there has stored what it learnt.
    """
    activities = np.repeat(np.arange(52 // 13) % 2, 13)
    rng = np.random.default_rng(2)
    x = np.where(activities, -6, 6)[:, None, None] + rng.integers(-2, 3, (52, 2, 4))
    x[5::9] *= -1
    begins_s = 2 * np.arange(52) + np.where(np.arange(52) < 26, 0, 90)
    window = MANIFEST.window
    stream = StreamFilter(StreamSums("0" * 64), window.stride / window.rate_hz)
    answers = []
    for begin_s, p in zip(begins_s.tolist(), _probabilities(_sums({"batch/x": x})), strict=True):
        answers += [answer for _, answer in stream.answer(begin_s, p)]
    return {"x": x.astype(F32), "begins_s": begins_s, "answers": np.array(answers, F32)}


def write_executor_cases(folder: Path) -> None:
    """A signed bundle, windows, blobs, and in `cases` each plan with its noise, what the device
    kept before, and the update it makes."""
    (folder / "blobs").mkdir(parents=True)
    (folder / "cases").mkdir()
    rng, key = np.random.default_rng(5), new_key()

    def small(*shape: int) -> Array:
        return rng.integers(-8, 9, shape).astype(F32)

    windows = Windows(
        small(41, 2, 4),
        rng.integers(0, 3, 41),
        small(19, 2, 4),
        rng.integers(0, 3, 19),
        small(14, 2, 4),
    )
    initial = {s.key: small(*s.shape) for s in MANIFEST.tensors if s.role != "received"}
    payload = pack(
        MANIFEST, {f"{name}.onnx": name.encode() for name in MANIFEST.graphs}, initial, key
    )
    (folder / "bundle.zip").write_bytes(payload)
    of_ids = msgspec.structs.replace(MANIFEST, window=Window(("u", "v"), 4, 4, vocabulary=9))
    (folder / "ids.zip").write_bytes(
        pack(of_ids, {f"{name}.onnx": name.encode() for name in MANIFEST.graphs}, initial, key)
    )
    service, until_s = new_key(), 4e9
    (folder / "trust.pem").write_bytes(public_pem(new_key()) + public_pem(key))
    (folder / "service.key").write_text(service.private_bytes_raw().hex())
    (folder / "voucher").write_bytes(vouch(key, "f", service.public_key(), until_s))
    (folder / "other.pem").write_bytes(public_pem(new_key()))
    arrays = {
        "train_x": windows.train_x,
        "train_y": windows.train_y,
        "test_x": windows.test_x,
        "test_y": windows.test_y,
    }
    arrays["unlabelled_x"] = windows.unlabelled_x
    (folder / "windows.safetensors").write_bytes(encode_tensors(arrays))
    (folder / "stream.safetensors").write_bytes(encode_tensors(stream_case()))
    models = [{s.key: small(*s.shape) for s in MANIFEST.received()} for _ in range(3)]
    models[1]["shared/w"][0, 0] = 0
    models[2]["shared/w"][0, 0] = np.nan
    blobs = {digest(encode_tensors(t)): t for t in (*models, {"x": small(5, 2, 4)})}
    for name, tensors in blobs.items():
        (folder / "blobs" / name).write_bytes(encode_tensors(tensors))
    first, second, third, inputs = blobs
    still = {
        **models[0],
        "received/c": np.zeros(1, F32),
    }  # changes that are dyadic numbers: their norm is exact in any order of summing
    still_name = digest(encode_tensors(still))
    blobs[still_name] = still
    (folder / "blobs" / still_name).write_bytes(encode_tensors(still))
    places, still_places = (
        m.Evaluate("windows", "places", holdout=0.25, report=report) for report in (True, False)
    )
    plans: list[tuple[str, tuple[m.Verb, ...]]] = [
        (first, (m.Evaluate(), m.Train(8, 3), m.Evaluate("train"))),
        (
            first,
            (
                m.Annotate("weigh", "weight"),
                m.Evaluate("train", "survey"),
                m.Train(16, steps=7, hyper={"lr": 0.3, "mu": 0.9}),
            ),
        ),
        (
            second,
            (
                m.Evaluate("holdout", holdout=0.2),
                m.Train(4, 2, holdout=0.2),
                m.Train(8, report=False),
                m.Apply("double"),
            ),
        ),
        (
            third,
            (
                m.Choose((third, first, second)),
                m.Evaluate("train", "survey", "initial", report=False),
                m.Respond(inputs),
                m.Train(40),
            ),
        ),
        (
            second,
            (
                m.Train(4, steps=10),
                m.Train(4, steps=1),
                m.Evaluate("holdout", "survey", holdout=0.5),
            ),
        ),
        (still_name, (m.Train(8, 2), m.Protect(0.125))),
        (still_name, (m.Train(8, 2), m.Protect(1e9))),
        (still_name, (m.Train(8, 2), m.Protect(0.5, 0.01), m.Evaluate())),
        (first, (m.Train(2, 1, hyper={"lr": 1e-3}), m.Evaluate(report=False), m.Apply("double"))),
        (first, ()),
        (first, (places, m.Apply("shift"), m.Evaluate("train", "survey"))),
        (
            second,
            (
                m.Annotate("weigh", "weight"),
                m.Train(4, report=False, least=41),
                m.Evaluate("windows", "survey"),
                still_places,
                m.Apply("shift", report=False),
            ),
        ),
        (second, (m.Train(4, holdout=0.25, least=33), m.Evaluate("holdout", holdout=0.25))),
        (second, (m.Train(4, holdout=0.25, least=32), m.Evaluate("windows", "survey"))),
        (first, (m.Evaluate("unlabelled", "places"), m.Evaluate("windows", "survey", most=9))),
        (first, (m.Evaluate("inputs", "places", holdout=0.5), m.Evaluate("inputs", "survey"))),
        (
            first,
            (
                m.Evaluate("windows", "places", holdout=0.25, most=30),
                m.Apply("shift"),
                m.Evaluate("unlabelled", "survey", most=7),
            ),
        ),
    ]
    private: Tensors = {}
    for number, (model, verbs) in enumerate(plans, start=1):
        noise = rng.standard_normal(2000).tolist()
        executor = Executor(unpack(payload), FakeGraphs(), windows, partial(_listed_noise, noise))
        plan = m.Plan(
            "run", 5, number, 0, "phone.1", digest(payload), model, verbs, 2**40 + number, 1e9
        )
        case = folder / "cases" / f"{number:02d}"
        case.mkdir()
        (case / "before.safetensors").write_bytes(encode_tensors(private))
        result = executor.execute(plan, blobs[model], private, blobs.__getitem__)
        private = result.private
        (case / "plan.json").write_bytes(encode(plan))
        (case / "noise.json").write_text(json.dumps(noise))
        (case / "after.safetensors").write_bytes(encode_tensors(private))
        metrics = result.evaluated, result.trained
        update = m.Update(
            "run",
            5,
            number,
            0,
            "phone.1",
            result.model,
            windows.num_train,
            result.num_steps,
            *metrics,
            7,
            0.125,
        )
        (case / "update.safetensors").write_bytes(encode_update(update, result.tensors))
