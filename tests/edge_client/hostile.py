"""Bundles that a device must survive: made from a good one by changing its manifest or its
bytes."""

import io
import zipfile
from typing import Any

import msgspec

from wire.arrays.tensors import decode_tensors
from wire.bundle import INITIAL, MANIFEST, SIGNATURE, Bundle, Graph, pack


def packed(bundle: Bundle, files: dict[str, bytes] | None = None, **changes: Any) -> bytes:
    """The bundle with another manifest or other files; its hashes fit, and it is not signed."""
    manifest = msgspec.structs.replace(bundle.manifest, **changes)
    content = {name: data for name, data in bundle.files.items() if name != INITIAL} | (files or {})
    return pack(manifest, content, decode_tensors(bundle.files[INITIAL])[0])


def with_graph(bundle: Bundle, name: str, **changes: Any) -> bytes:
    """The bundle with another description of one graph."""
    graph = msgspec.structs.replace(bundle.manifest.graphs[name], **changes)
    return packed(bundle, graphs={**bundle.manifest.graphs, name: graph})


def encrypted(bundle: Bundle) -> bytes:
    """The bundle, all of whose entries claim to be encrypted."""
    payload = bytearray(bundle.payload)
    for mark, flags_at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = payload.find(mark)
        while at >= 0:
            payload[at + flags_at] |= 1
            at = payload.find(mark, at + 4)
    return bytes(payload)


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of any files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def repeated(count: int, size: int) -> bytes:
    """An archive whose directory names one file of so many bytes again and again."""
    payload = zipped({MANIFEST: bytes(size)})
    at = payload.index(b"PK\1\2")
    directory, end = payload[at:-22] * count, payload[-22:]
    counts = min(count, 0xFFFF).to_bytes(2, "little") * 2
    return (
        payload[:at]
        + directory
        + end[:8]
        + counts
        + len(directory).to_bytes(4, "little")
        + end[16:]
    )


def hostile_bundles(bundle: Bundle) -> dict[str, bytes]:
    """Return hostile bundles, by their fault."""
    files = {MANIFEST: msgspec.json.encode(bundle.manifest), SIGNATURE: b"", **bundle.files}
    step, predict = bundle.manifest.graphs["step"], bundle.manifest.graphs["predict"]
    leaks = Graph(
        step.file,
        step.inputs,
        tuple(o.replace("next/slot/", "next/statistic/") for o in step.outputs),
        step.responses,
    )
    return {
        "truncated": bundle.payload[: len(bundle.payload) // 2],
        "cut at the end": bundle.payload[:-3],
        "not a ZIP": b"PK" + bytes(200),
        "encrypted": encrypted(bundle),
        "compressed": zipped(files, zipfile.ZIP_DEFLATED),
        "a name a thousand times": repeated(1000, 2**15),
        "a directory of too many names": repeated(30_000, 0),
        "a comment": zipped(files)[:-2] + b"\3\0abc",
        "no manifest": zipped(dict(bundle.files)),
        "manifest nested deeply": zipped({**files, MANIFEST: b"[" * 200_000}),
        "manifest a list": zipped({**files, MANIFEST: b"[]"}),
        "manifest not UTF-8": zipped({**files, MANIFEST: b"\xff"}),
        "a file too few": zipped({name: data for name, data in files.items() if name != step.file}),
        "a file changed": zipped({**files, step.file: b"changed"}),
        "a later format": packed(bundle, format=2),
        "no graphs": packed(bundle, graphs={}),
        "a graph that is no graph": packed(bundle, files={step.file: b"junk"}),
        "an empty graph": packed(bundle, files={step.file: b""}),
        "another graph's file": with_graph(bundle, "step", file=predict.file),
        "fewer outputs than the graph has": with_graph(bundle, "step", outputs=step.outputs[:-1]),
        "more outputs than the graph has": with_graph(
            bundle, "step", outputs=(*step.outputs, "metric/more")
        ),
        "outputs in another order": with_graph(bundle, "step", outputs=step.outputs[::-1]),
        "outputs of tensors that are not there": packed(
            bundle, graphs={**bundle.manifest.graphs, "step": leaks}
        ),
        "outputs without names": with_graph(bundle, "step", outputs=("",) * len(step.outputs)),
        "no outputs": with_graph(bundle, "step", outputs=()),
        "no inputs": with_graph(bundle, "step", inputs=()),
        "inputs that nobody has": with_graph(
            bundle, "step", inputs=(*step.inputs, "hyper/unknown")
        ),
        "no classes": packed(bundle, classes=()),
        "batches of more than all": packed(bundle, min_batch=2**31),
        "another window": packed(
            bundle, window=msgspec.structs.replace(bundle.manifest.window, length=31)
        ),
        "random numbers without end": packed(bundle, random={"uniform/x": (2**40, 2**40)}),
        "random numbers of a negative shape": packed(bundle, random={"normal/x": (-1,)}),
        "no tensors": packed(bundle, tensors=()),
    }
