"""Topics, tensors, messages and bundles: examples, properties, and what must be refused."""

import contextlib
import io
import json
import struct
import zipfile
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support.bundles import Exported
from wire import messages as m
from wire.arrays import names as names_of
from wire.arrays.tensors import Limits, TensorSpec, check_layout, decode_tensors, encode_tensors
from wire.bundle import BUNDLE_BYTES, Bundle, Manifest, check_version, pack, unpack
from wire.codec import MESSAGE_BYTES, decode, decode_update, digest, encode, encode_update
from wire.errors import (
    BundleError,
    ConfigError,
    LimitExceeded,
    Malformed,
    ShoalError,
    StaleBundle,
    TamperedBundle,
    UnknownTopic,
    WireError,
    WrongLayout,
)
from wire.identity.keys import new_key, public_pem, read_private, read_public
from wire.topics import Address, Topics

names = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
arrays = hnp.arrays(
    st.sampled_from([np.float32, np.int64, np.int32, np.uint8, np.int8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)


class TestTopics:
    @given(
        fleet=names,
        device=names,
        kind=st.sampled_from(["check-in", "update", "fetch", "status", "plan", "reply"]),
    )
    def test_device_topics_parse_back(self, fleet: str, device: str, kind: Any) -> None:
        topics = Topics(fleet)
        assert topics.parse(topics.device(device, kind)) == Address(kind, device_id=device)

    def test_blob_and_aggregator_parse_back(self) -> None:
        topics = Topics("f")
        assert topics.parse(topics.blob("0" * 64)) == Address("blob", digest="0" * 64)
        assert topics.parse(topics.aggregator) == Address("aggregator")

    @given(st.text(max_size=200))
    def test_any_other_text_is_unknown(self, text: str) -> None:
        with pytest.raises(UnknownTopic):
            Topics("f").parse(text)

    @pytest.mark.parametrize("name", ["", "a/b", "+", "#", "a b", "x" * 65, "ä"])
    def test_names_that_would_break_a_topic_are_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match="expected 1 to 64 characters"):
            Topics(name)


class TestTensors:
    @given(st.dictionaries(names, arrays, max_size=6), st.text(max_size=50))
    def test_round_trip(self, tensors: dict[str, np.ndarray], message: str) -> None:
        back, text = decode_tensors(encode_tensors(tensors, message.encode()))
        assert text == message.encode()
        assert back.keys() == tensors.keys()
        for name, array in tensors.items():
            assert back[name].dtype == array.dtype
            np.testing.assert_array_equal(back[name], array)

    @given(st.dictionaries(names, arrays, max_size=6), st.text(max_size=50))
    def test_bytes_are_those_of_the_safetensors_library(
        self, tensors: dict[str, np.ndarray], message: str
    ) -> None:
        ours = encode_tensors(tensors, message.encode())
        assert ours == safetensors.numpy.save(tensors, {"shoal": message} if message else None)
        for name, array in safetensors.numpy.load(ours).items():
            np.testing.assert_array_equal(array, tensors[name])

    def test_arrays_of_other_types_are_refused(self) -> None:
        with pytest.raises(
            ValueError, match="tensor 'a' is float64, expected one of int64, float32"
        ):
            encode_tensors({"a": np.zeros(2)})

    def test_non_contiguous_arrays_are_written_in_row_order(self) -> None:
        array = np.arange(12, dtype=np.float32).reshape(3, 4).T
        np.testing.assert_array_equal(decode_tensors(encode_tensors({"a": array}))[0]["a"], array)

    def test_limits_are_checked_on_the_header_alone(self) -> None:
        promise = json.dumps(
            {"a": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4 * 10**18]}}
        ).encode()
        with pytest.raises(Malformed, match="only 0 bytes"):
            decode_tensors(struct.pack("<Q", len(promise)) + promise)

    @pytest.mark.parametrize(
        ("limits", "error"),
        [
            (Limits(total_bytes=50), "at most 50 are accepted"),
            (Limits(header_bytes=10), "header of"),
            (Limits(num_tensors=1), "2 tensors"),
            (Limits(num_dims=1), "2 dimensions"),
        ],
    )
    def test_over_a_limit(self, limits: Limits, error: str) -> None:
        with pytest.raises(LimitExceeded, match=error):
            decode_tensors(
                encode_tensors(
                    {"a": np.zeros((2, 2), np.float32), "b": np.zeros((2, 2), np.float32)}
                ),
                limits,
            )

    @given(st.binary(max_size=300))
    def test_garbage_raises_wire_errors_only(self, payload: bytes) -> None:
        with pytest.raises(WireError):
            decode_tensors(payload)

    @given(
        st.dictionaries(
            st.sampled_from(["a", "b", "__metadata__"]),
            st.recursive(
                st.one_of(
                    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)
                ),
                lambda inner: st.one_of(
                    st.lists(inner, max_size=3),
                    st.dictionaries(
                        st.sampled_from(["dtype", "shape", "data_offsets", "shoal"]), inner
                    ),
                ),
                max_leaves=8,
            ),
        ),
        st.binary(max_size=16),
    )
    def test_any_json_header_is_read_or_refused(self, header: dict[str, Any], data: bytes) -> None:
        text = json.dumps(header).encode()
        with contextlib.suppress(WireError):
            decode_tensors(struct.pack("<Q", len(text)) + text + data)

    @given(st.data())
    def test_a_mutated_file_is_read_or_refused(self, data: st.DataObject) -> None:
        payload = bytearray(
            encode_tensors(
                {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.int64)},
                b'{"x":1}',
            )
        )
        for _ in range(data.draw(st.integers(1, 4))):
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(payload)))
        for candidate in (bytes(payload), bytes(payload[:cut])):
            with contextlib.suppress(WireError):
                decode_tensors(candidate)

    def test_layout_names_the_first_difference(self) -> None:
        expected = [("a", "float32", (2,)), ("b", "float32", (1,))]
        with pytest.raises(WrongLayout, match="tensor 'b' is missing"):
            check_layout({"a": np.zeros(2, np.float32)}, expected, "update")
        with pytest.raises(WrongLayout, match=r"'a' is float64\[2\], expected float32\[2\]"):
            check_layout({"a": np.zeros(2), "b": np.zeros(1, np.float32)}, expected, "update")
        with pytest.raises(WrongLayout, match="'c' was not expected"):
            check_layout(
                {"a": np.zeros(2, np.float32), "b": np.zeros(1, np.float32), "c": np.zeros(1)},
                expected,
                "update",
            )


PLAN = m.Plan(
    "r",
    1,
    1,
    0,
    "d1",
    "0" * 64,
    "1" * 64,
    (m.Evaluate(), m.Train(32, 2, hyper={"lr": 0.01}), m.Respond("2" * 64)),
    7,
    12.5,
)


class TestMessages:
    @pytest.mark.parametrize(
        "message",
        [
            PLAN,
            m.CheckIn("d1", 10, 2),
            m.Fetch("d1", "a" * 64),
            m.DeviceStatus("d1", False),
            m.AggregatorStatus(True, "b", 7, 1.5, "r"),
            m.Acknowledge("d1", "a" * 64),
            m.Refuse("d1", "not-finite", "x"),
            m.Finish("d1", "r", 7, "0" * 64, "1" * 64),
        ],
    )
    def test_round_trip(self, message: Any) -> None:
        assert decode(encode(message), type(message)) == message

    def test_unknown_fields_are_ignored(self) -> None:
        text = json.loads(encode(PLAN)) | {"new_field": [1, 2]}
        assert decode(json.dumps(text).encode(), m.Plan) == PLAN

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"type": "other"}, "type"),
            ({"round": 0}, "round"),
            ({"device_id": "a/b"}, "device_id"),
            ({"bundle": "xyz"}, "bundle"),
            ({"verbs": [{"type": "format-disk"}]}, "verbs"),
        ],
    )
    def test_wrong_values_are_named(self, change: dict[str, Any], error: str) -> None:
        with pytest.raises(Malformed, match=error):
            decode(json.dumps(json.loads(encode(PLAN)) | change).encode(), m.Plan)

    def test_large_message_is_refused_before_it_is_parsed(self) -> None:
        with pytest.raises(LimitExceeded):
            decode(b"[" * (MESSAGE_BYTES + 1), m.Plan)

    @given(st.binary(max_size=200))
    def test_garbage_raises_wire_errors_only(self, payload: bytes) -> None:
        for kind in (m.CheckIn, m.Plan, m.Update):
            with pytest.raises(WireError):
                decode(payload, kind)

    def test_update_with_its_tensors(self) -> None:
        update = m.Update(
            "r",
            1,
            1,
            0,
            "d1",
            "0" * 64,
            10,
            3,
            m.Metrics(4, 1.5, 2),
            m.Metrics(10, 9.0, 5),
            100,
            0.5,
        )
        back, tensors = decode_update(encode_update(update, {"delta/w": np.ones(3, np.float32)}))
        assert back == update
        assert tensors["delta/w"].tolist() == [1, 1, 1]

    def test_update_without_a_message_is_malformed(self) -> None:
        with pytest.raises(Malformed, match="no message"):
            decode_update(encode_tensors({"a": np.zeros(1, np.float32)}))

    def test_schema_file_is_that_of_the_messages(self) -> None:
        from tests.wire.write_vectors import SCHEMA, schema_text

        assert SCHEMA.read_text() == schema_text(), "run python -m tests.wire.write_vectors"


class TestBundle:
    def test_the_same_content_has_the_same_bytes(self, exported: Exported) -> None:
        bundle = exported.bundle
        files = {name: data for name, data in bundle.files.items() if name.endswith(".onnx")}
        assert pack(bundle.manifest, files, bundle.initial) == pack(
            bundle.manifest, files, bundle.initial
        )

    @pytest.mark.parametrize("keep", [(), ("memory/labels",), ("memory/labels", "slot/before.w")])
    def test_tensors_that_start_at_zero_are_not_in_the_file_and_are_there_all_the_same(
        self, exported: Exported, keep: tuple[str, ...]
    ) -> None:
        """A bundle decodes alike with and without them; only the roles private and slot are left
        out."""
        shapes = {
            "shared/w": (3,),
            "statistic/w": (2,),
            "memory/labels": (4, 3),
            "slot/before.w": (3,),
            "private/a": (),
        }
        tensors = {key: np.zeros(shape, np.float32) for key, shape in shapes.items()} | {
            "private/a": np.float32(2) * np.ones((), np.float32)
        }
        manifest = self._of(exported, tensors)
        payload = pack(manifest, {}, tensors)
        bundle = unpack(payload)
        assert set(decode_tensors(bundle.files["initial.safetensors"])[0]) == {
            "shared/w",
            "statistic/w",
            "private/a",
        }
        said = {
            "initial.safetensors": encode_tensors(
                {
                    k: v
                    for k, v in tensors.items()
                    if k in keep or not k.startswith(("private/m", "slot"))
                }
            )
        }
        for found in (bundle.initial, Bundle(manifest, said, "", b"").initial):
            assert found.keys() == tensors.keys()
            assert all(
                np.array_equal(found[k], v) and found[k].dtype == v.dtype
                for k, v in tensors.items()
            )

    def test_tensors_that_start_at_zero_are_bounded(self, exported: Exported) -> None:
        """A manifest may ask for any shape; nothing is allocated before it is held against the
        limit of a tensor file."""
        most = BUNDLE_BYTES // 4
        manifest = self._of(exported, {"slot/w": np.zeros(1, np.float32)})
        (spec,) = manifest.tensors
        for shapes in (((most + 1,),), ((2**40,),), ((most,), (1,))):
            specs = tuple(
                msgspec.structs.replace(spec, name=f"w{i}", shape=shape)
                for i, shape in enumerate(shapes)
            )
            bundle = unpack(pack(msgspec.structs.replace(manifest, tensors=specs), {}, {}))
            with pytest.raises(LimitExceeded, match="its tensors that start at zero take"):
                _ = bundle.initial

    @pytest.mark.parametrize("shape", [(-1,), (2**40, -(2**40)), (1,) * 100, (2**62, 2**62, 0)])
    def test_a_tensor_that_starts_at_zero_with_a_shape_that_none_has_is_refused(
        self, exported: Exported, shape: tuple[int, ...]
    ) -> None:
        manifest = self._of(exported, {"slot/w": np.zeros(1, np.float32)})
        specs = (msgspec.structs.replace(manifest.tensors[0], shape=shape),)
        bundle = unpack(pack(msgspec.structs.replace(manifest, tensors=specs), {}, {}))
        with pytest.raises(BundleError, match=r"has the impossible shape|cannot be allocated"):
            _ = bundle.initial

    @staticmethod
    def _of(exported: Exported, tensors: dict[str, Any]) -> Manifest:
        """A manifest of these tensors, without graphs."""
        said = [
            {
                "name": names_of.name_of(k),
                "role": names_of.role_of(k),
                "dtype": str(v.dtype),
                "shape": v.shape,
            }
            for k, v in tensors.items()
        ]
        specs = msgspec.convert(said, tuple[TensorSpec, ...])
        return msgspec.structs.replace(exported.bundle.manifest, tensors=specs, graphs={})

    def test_signature_is_required_when_a_key_is_trusted(self, exported: Exported) -> None:
        trusted = read_public((exported.folder / "trust.pem").read_bytes())
        assert unpack(exported.bundle.payload, trusted).digest == digest(exported.bundle.payload)
        with pytest.raises(TamperedBundle, match="not made with a trusted key"):
            unpack(exported.bundle.payload, (new_key().public_key(),))
        unsigned = pack(
            exported.bundle.manifest,
            {n: d for n, d in exported.bundle.files.items() if n.endswith(".onnx")},
            exported.bundle.initial,
        )
        with pytest.raises(TamperedBundle, match="not signed"):
            unpack(unsigned, trusted)

    def test_a_private_or_slot_tensor_without_a_value_starts_at_zero_within_bounds(
        self, exported: Exported
    ) -> None:
        files = {
            name: data for name, data in exported.bundle.files.items() if name.endswith(".onnx")
        }
        small, huge = (
            TensorSpec("more", "slot", "float32", (2, 3)),
            TensorSpec("more", "slot", "float32", (2**20, 2**20)),
        )
        for spec, initial in (
            (small, exported.bundle.initial | {"slot/more": np.ones((2, 3), np.float32)}),
            (small, exported.bundle.initial),
        ):
            manifest = msgspec.structs.replace(
                exported.bundle.manifest, tensors=(*exported.bundle.manifest.tensors, spec)
            )
            more = unpack(pack(manifest, files, initial)).initial["slot/more"]
            assert np.array_equal(more, initial.get("slot/more", np.zeros((2, 3), np.float32)))
        manifest = msgspec.structs.replace(
            exported.bundle.manifest, tensors=(*exported.bundle.manifest.tensors, huge)
        )
        with pytest.raises(LimitExceeded, match="start at zero"):
            _ = unpack(pack(manifest, files, exported.bundle.initial)).initial

    def test_a_changed_file_is_noticed(self, exported: Exported) -> None:
        payload = self._with(exported, {"step.onnx": b"other"})
        with pytest.raises(TamperedBundle, match=r"step\.onnx has SHA-256"):
            unpack(payload)

    def test_an_added_or_missing_file_is_noticed(self, exported: Exported) -> None:
        with pytest.raises(TamperedBundle, match="but its manifest names"):
            unpack(self._with(exported, {"extra": b"x"}))
        with pytest.raises(BundleError):
            unpack(self._with(exported, {"step.onnx": None}))

    def test_compressed_entries_are_refused(self) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("manifest.json", b"0" * 10**6)
        with pytest.raises(BundleError, match="without compression"):
            unpack(buffer.getvalue())

    @given(st.binary(max_size=500))
    def test_garbage_raises_bundle_errors_only(self, payload: bytes) -> None:
        with pytest.raises(WireError):
            unpack(payload)

    def test_an_older_version_is_refused(self, exported: Exported) -> None:
        manifest = msgspec.structs.replace(exported.bundle.manifest, version=2)
        check_version(manifest, {manifest.name: 2})
        with pytest.raises(StaleBundle, match="version 2 is older than version 3"):
            check_version(manifest, {manifest.name: 3})

    def test_keys_of_another_kind_are_refused(self) -> None:
        with pytest.raises(BundleError, match="trusted key"):
            read_public(b"nonsense")
        with pytest.raises(BundleError, match="signing key"):
            read_private(public_pem(new_key()))

    def test_manifest_names_inputs_and_outputs_by_role(self, exported: Exported) -> None:
        step = exported.bundle.manifest.graphs["step"]
        assert {
            "shared/head.weight",
            "statistic/extractor.norm1.running_mean",
            "slot/momentum.head.weight",
            "batch/x",
            "hyper/lr",
        } <= set(step.inputs)
        assert {"next/shared/head.weight", "metric/loss_sum"} <= set(step.outputs)
        assert isinstance(exported.bundle.manifest, Manifest)

    def _with(self, exported: Exported, changes: dict[str, bytes | None]) -> bytes:
        buffer = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(exported.bundle.payload)) as old,
            zipfile.ZipFile(buffer, "w") as new,
        ):
            content = {name: old.read(name) for name in old.namelist()} | changes
            for name, data in content.items():
                if data is not None:
                    new.writestr(name, data)
        return buffer.getvalue()


def test_every_error_is_drawn_in_the_tree() -> None:
    import wire.errors

    drawn = wire.errors.__doc__ or ""
    classes = [
        v for v in vars(wire.errors).values() if isinstance(v, type) and issubclass(v, ShoalError)
    ]
    assert len(classes) > 8
    assert all(c.__name__ in drawn for c in classes)
