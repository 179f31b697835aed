"""Bundle of a campaign: one file with the graphs and initial tensors, verified before it is loaded.

It is a ZIP archive, stored without compression and with fixed time stamps, so that the same content
has the same bytes and hash: ``manifest.json``, ``manifest.sig`` (Ed25519 over the manifest's bytes,
if signed) and the files that the manifest names with their SHA-256: the graphs and
``initial.safetensors`` (SPEC.md, 'Bundles').
"""

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np

from wire.arrays import names
from wire.arrays.tensors import RECEIVED_FILES, Tensors, TensorSpec, decode_tensors, encode_tensors
from wire.codec import digest
from wire.errors import BundleError, LimitExceeded, StaleBundle, TamperedBundle
from wire.identity.keys import PrivateKey, PublicKey, verifies
from wire.messages import Count, Digest, Name, Positive, Text
from wire.tasks import CLASSIFICATION, Label, TaskName, answer_of, label_of

Layout = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Name, dtype and shape of each tensor that a message must carry."""

BUNDLE_BYTES, DIRECTORY_BYTES = 2**31 - 1, 2**20
"""Maximum number of bytes of a bundle, and of its directory of files."""
EXECUTORCH, PORTABLE = "executorch", "executorch-portable"
"""Runtimes for which a bundle may have programs.

They are ExecuTorch with its XNNPACK backend, and ExecuTorch with its portable operators.
"""
MANIFEST, SIGNATURE, INITIAL = "manifest.json", "manifest.sig", "initial.safetensors"
ZERO_UNLESS_SAID = (names.PRIVATE, names.SLOT, names.MEMORY)
"""Roles of tensors that start at zero unless `INITIAL` has another value."""


class Program(msgspec.Struct, frozen=True):
    """Graph as a program of another runtime, with the graph's inputs and outputs by position.

    Its method is ``forward``. It takes batches of at most `max_batch` examples. `operators` counts
    its operators by the runtime's names, and its delegated parts as ``delegated/BACKEND/NAME``.
    `num_bytes` is the size of the file, `memory_bytes` the memory that the runtime plans for its
    tensors.
    """

    file: Text
    max_batch: Positive
    operators: dict[str, int] = {}
    num_bytes: Count = 0
    memory_bytes: Count = 0


class Graph(msgspec.Struct, frozen=True):
    """Graph of a bundle. `inputs` and `outputs` are in the graph's order.

    Inputs are ``ROLE/NAME`` of the manifest's tensors, ``batch/x`` and the like, ``hyper/NAME``
    (float32 scalars) and ``response/GRAPH.NAME`` (metrics of an earlier graph of the plan); outputs
    are ``next/ROLE/NAME``, ``metric/NAME`` (sums) and ``output/NAME`` (one row per example).
    `responses` are the metrics, by name and shape, that go back as responses. `file` is the graph
    in ONNX; `programs` are the same graph for other runtimes, by runtime. `template` is the graph
    in ONNX once more, with ``x`` as its only input and the tensors as names without values
    (`wire.arrays.onnx_model`); empty if there is none.
    """

    file: Text
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    responses: tuple[tuple[str, tuple[int, ...]], ...] = ()
    programs: dict[str, Program] = {}
    template: Text = ""


class Window(msgspec.Struct, frozen=True):
    """Form of an example: `channels` x `length` samples, cut every `stride` samples at `rate_hz`.

    A `rate_hz` of 0 is unknown. With a `height`, an example is an image of `channels` x `height` x
    `length`. With a `vocabulary`, its values are ids from 0 to `vocabulary` - 1, int64, such as
    those of words or events; else measurements, float32. With `steps`, this number of consecutive
    parts of it have a class each; else it has one label as a whole.
    """

    channels: tuple[str, ...]
    length: Positive
    stride: Positive
    rate_hz: float = 0.0
    height: Count = 0
    vocabulary: Count = 0
    steps: Count = 0

    @property
    def dtype(self) -> Literal["float32", "int64"]:
        """Dtype of its values, as graphs read them."""
        return "int64" if self.vocabulary else "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example: (channels, length), or (channels, height, length) of an image."""
        return (len(self.channels), *([self.height] if self.height else []), self.length)


class Manifest(msgspec.Struct, frozen=True):
    """Manifest of a bundle.

    `version` only increases; a device refuses an older one of the same `name`.
    """

    name: Name
    version: Positive
    algorithm: Text
    created_by: dict[str, str]
    classes: tuple[str, ...]
    window: Window
    min_batch: Positive
    hyper: dict[str, float]
    tensors: tuple[TensorSpec, ...]
    graphs: dict[str, Graph]
    files: dict[str, Digest]
    columns: dict[str, tuple[int, ...]] = {}
    """Columns that graphs read besides ``x`` and ``y``, with the shape of one example's entry."""
    random: dict[str, tuple[int, ...]] = {}
    """Random inputs with their shapes.

    ``uniform/NAME`` has the shape for one example, ``normal/NAME`` the whole shape.
    """
    task: TaskName = CLASSIFICATION
    """Task that is learned.

    `classes` names the numbers that ``predict`` returns. In a reconstruction, windows need no
    labels.
    """
    format: Positive = 1

    @property
    def label(self) -> Label:
        """Form of a window's label."""
        return label_of(self.task, len(self.classes), self.window.steps)

    @property
    def answer(self) -> tuple[int, ...]:
        """Shape of the answer of ``predict`` for one window.

        It has a number for each name, or for each name of each step.
        """
        return answer_of(self.task, len(self.classes), self.window.steps)

    @property
    def measuring(self) -> str:
        """Name of the graph that measures a device's answers, which its personal model may change.

        It is ``assess`` if the bundle has it, else ``evaluate``.
        """
        outputs = self.graphs[names.ASSESS].outputs if names.ASSESS in self.graphs else ()
        return (
            names.ASSESS if {names.LOSS_SUM, names.NUM_CORRECT} <= set(outputs) else names.EVALUATE
        )

    def of_role(self, *roles: str) -> tuple[TensorSpec, ...]:
        """Return the tensors of these roles, in the manifest's order."""
        return tuple(spec for spec in self.tensors if spec.role in roles)

    def received(self) -> tuple[TensorSpec, ...]:
        """Return the tensors of a model's blob.

        These are the roles shared and statistic, and received except for ``start.NAME``, which the
        device fills itself.
        """
        return tuple(
            s for s in self.of_role(*names.EXCHANGED, names.RECEIVED) if not names.is_start(s.key)
        )

    def reported(self, graph: str) -> Layout:
        """Return the layout of an update that reports a training with this graph."""
        outputs = self.graphs[graph].outputs
        changed = [s for s in self.of_role(*names.EXCHANGED) if names.following(s.key) in outputs]
        return tuple(
            (names.delta(s.name) if s.role == names.SHARED else s.key, s.dtype, s.shape)
            for s in changed
        )

    def responses(self, graph: str) -> Layout:
        """Return the layout of the responses after this graph was evaluated or applied."""
        return tuple(
            (names.response(graph, name), "float32", shape)
            for name, shape in self.graphs[graph].responses
        )


@dataclass(frozen=True)
class Bundle:
    """Verified bundle.

    `files` has the bytes of each file by name; `digest` is the hash of the whole archive.
    """

    manifest: Manifest
    files: Mapping[str, bytes]
    digest: str
    payload: bytes = field(repr=False)

    @cached_property
    def initial(self) -> Tensors:
        """Initial value of every tensor that has one, by ``ROLE/NAME``; read-only.

        Raises:
            LimitExceeded: the tensors that start at zero take more than `BUNDLE_BYTES`.
            BundleError: one of them has an impossible shape.
        """
        arrays, name = decode_tensors(self.files[INITIAL], RECEIVED_FILES)[0], self.manifest.name
        zero = [spec for spec in self.manifest.of_role(*ZERO_UNLESS_SAID) if spec.key not in arrays]
        if wrong := [spec for spec in zero if min(spec.shape, default=0) < 0]:
            key, shape = wrong[0].key, wrong[0].shape
            raise BundleError(f"bundle {name}: tensor {key!r} has the impossible shape {shape}")
        if (size := sum(spec.num_bytes for spec in zero)) > BUNDLE_BYTES:
            raise LimitExceeded(
                f"bundle {name}: its tensors that start at zero take {size} bytes; at most "
                f"{BUNDLE_BYTES} are accepted"
            )
        try:
            return arrays | {spec.key: np.zeros(spec.shape, spec.dtype) for spec in zero}
        except (
            ValueError,
            OverflowError,
        ) as error:  # more dimensions than numpy has, or larger ones
            raise BundleError(
                f"bundle {name}: a tensor that starts at zero cannot be allocated: {error}"
            ) from None

    def graph_bytes(self, name: str) -> bytes:
        """Return the bytes of one graph.

        Raises:
            BundleError: the bundle has no such graph.
        """
        if name not in self.manifest.graphs:
            raise BundleError(
                f"bundle {self.manifest.name}: no graph {name!r}; its graphs: "
                f"{', '.join(sorted(self.manifest.graphs))}"
            )
        return self.files[self.manifest.graphs[name].file]

    def program(self, graph: str, runtime: str) -> tuple[Program, bytes]:
        """Return a graph's program for a runtime, and its bytes.

        Raises:
            BundleError: the bundle has no such graph, or no program of it for this runtime.
        """
        self.graph_bytes(graph)
        programs = self.manifest.graphs[graph].programs
        if runtime not in programs:
            others = ", ".join(sorted(programs)) or "none; it was exported for ONNX alone"
            raise BundleError(
                f"bundle {self.manifest.name}: graph {graph!r} has no program for {runtime}; its "
                f"programs: {others}"
            )
        return programs[runtime], self.files[programs[runtime].file]


def pack(
    manifest: Manifest, files: Mapping[str, bytes], initial: Tensors, key: PrivateKey | None = None
) -> bytes:
    """Return the bytes of a bundle, signed if a key is passed.

    The hashes in the manifest are filled in.
    """
    tensors = {
        key: value
        for key, value in initial.items()
        if names.role_of(key) not in ZERO_UNLESS_SAID or value.any()
    }
    content = {**files, INITIAL: encode_tensors(tensors)}
    manifest = msgspec.structs.replace(
        manifest, files={name: digest(data) for name, data in sorted(content.items())}
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    entries = {
        MANIFEST: text,
        **({SIGNATURE: key.sign(text)} if key else {}),
        **dict(sorted(content.items())),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return buffer.getvalue()


def unpack(payload: bytes, trusted: Sequence[PublicKey] = ()) -> Bundle:
    """Return the verified content of a bundle.

    With `trusted` keys, a signature by one of them is required; without any, only the hashes are
    checked.

    Raises:
        LimitExceeded: larger than `BUNDLE_BYTES`.
        TamperedBundle: a hash or the signature does not match.
        BundleError: not a bundle, a file is missing, or this version cannot read the format.
    """
    if len(payload) > BUNDLE_BYTES:
        raise LimitExceeded(f"bundle of {len(payload)} bytes: at most {BUNDLE_BYTES} are accepted")
    _check_directory(payload)
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            if any(
                i.compress_type != zipfile.ZIP_STORED or i.file_size > len(payload)
                for i in archive.infolist()
            ):
                raise BundleError("bundle: its files must be stored without compression")
            paths = archive.namelist()
            if len(set(paths)) < len(paths) or sum(i.file_size for i in archive.infolist()) > len(
                payload
            ):
                raise BundleError("bundle: two of its files have the same name, or overlap")
            text = archive.read(MANIFEST)
            if trusted and SIGNATURE not in paths:
                raise TamperedBundle(
                    "bundle: it is not signed, and a signature by a trusted key is required"
                )
            signature = archive.read(SIGNATURE) if trusted else b""
            if trusted and not any(verifies(key, signature, text) for key in trusted):
                raise TamperedBundle("bundle: its signature was not made with a trusted key")
            entries = {
                name: archive.read(name) for name in paths if name not in (MANIFEST, SIGNATURE)
            }
        manifest = msgspec.json.decode(text, type=Manifest)
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        RuntimeError,
        OSError,
        EOFError,
        OverflowError,
        struct.error,
    ) as error:
        raise BundleError(f"bundle of {len(payload)} bytes: not readable: {error}") from None
    if manifest.format != 1:
        raise BundleError(
            f"bundle {manifest.name}: format {manifest.format}; this Shoal reads format 1"
        )
    if entries.keys() != manifest.files.keys():
        raise TamperedBundle(
            f"bundle {manifest.name}: its files are {', '.join(sorted(entries))}, but its manifest "
            f"names {', '.join(sorted(manifest.files))}"
        )
    for name, data in entries.items():
        if digest(data) != manifest.files[name]:
            raise TamperedBundle(
                f"bundle {manifest.name}: {name} has SHA-256 {digest(data)}, but its manifest "
                f"says {manifest.files[name]}"
            )
    graphs = manifest.graphs.values()
    named = {
        INITIAL,
        *(g.file for g in graphs),
        *(p.file for g in graphs for p in g.programs.values()),
    }
    named |= {g.template for g in graphs} - {""}
    if missing := named - entries.keys():
        raise BundleError(
            f"bundle {manifest.name}: missing files: {', '.join(sorted(missing))}; write the "
            "bundle again with `shoal export`"
        )
    return Bundle(manifest, entries, digest(payload), payload)


def _check_directory(payload: bytes) -> None:
    """Raise BundleError if the end of a ZIP file differs from what `pack` writes.

    It is checked before the directory is read: a directory of a million entries would take hundreds
    of MiB, and a signature does not prevent that.
    """
    end = payload[
        -22:
        # the record that ends a ZIP file without a comment: its signature, ..., size and position
        # of the directory, 0
    ]
    if len(end) < 22 or end[:4] != b"PK\5\6" or payload[-42:-38] == b"PK\6\7":
        raise BundleError(
            f"bundle of {len(payload)} bytes: not readable: no ZIP file, cut off, or with a "
            "comment at its end"
        )
    if int.from_bytes(end[12:16], "little") > DIRECTORY_BYTES:
        raise BundleError(
            f"bundle of {len(payload)} bytes: its ZIP directory has more than {DIRECTORY_BYTES} "
            "bytes"
        )


def check_version(manifest: Manifest, newest: Mapping[str, int]) -> None:
    """Raise StaleBundle if the version is older than the loaded one.

    `newest`: version that was loaded before, by name of the bundle.

    Raises:
        StaleBundle: the version is older.
    """
    if manifest.version < newest.get(manifest.name, 0):
        raise StaleBundle(
            f"bundle {manifest.name}: version {manifest.version} is older than version "
            f"{newest[manifest.name]}, which was loaded before"
        )
