"""A device's key for secret sums: made once, and named when it is lost."""

from pathlib import Path

import pytest

from edge_client.storage.sums_key import KEY, PUBLIC, sums_key
from wire.errors import ConfigError, Malformed
from wire.identity.certificates import key_digest, new_tls_key
from wire.secret.named_keys import read_helpers, read_named_keys, write_named_key


def test_it_is_the_same_after_each_start_and_others_cannot_read_it(tmp_path: Path) -> None:
    first = key_digest(sums_key(tmp_path / "state", "pi-1").public_key())
    assert key_digest(sums_key(tmp_path / "state", "pi-1").public_key()) == first
    (device,) = read_named_keys((tmp_path / "state" / PUBLIC).read_bytes(), "device")
    assert (device.name, device.digest) == ("pi-1", first)
    assert (tmp_path / "state" / KEY).stat().st_mode & 0o77 == 0


def test_a_damaged_key_ends_the_start_with_what_to_do(tmp_path: Path) -> None:
    sums_key(tmp_path, "pi-1")
    (tmp_path / KEY).write_bytes(b"none")
    with pytest.raises(ConfigError, match=r"sums\.key: .* delete it, and have the new sums\.pub"):
        sums_key(tmp_path, "pi-1")


class TestHelpers:
    """The file of a fleet's helpers."""

    def test_files_one_after_the_other_are_one_in_any_order(self) -> None:
        files = [write_named_key("helper", name, new_tls_key().public_key()) for name in "abc"]
        assert read_helpers(b"".join(files)) == read_helpers(b"\n\n".join(reversed(files)))
        assert {helper.name for helper in read_helpers(b"".join(files))} == {"a", "b", "c"}

    @pytest.mark.parametrize(
        ("names", "error"),
        [
            ("", r"line 1: expected a line 'helper NAME' and a public key \(PEM\)"),
            ("abcde", "5 helpers, at most 4 are allowed"),
            ("aba", "two helpers have the same name; each is another party with its own"),
        ],
    )
    def test_a_file_that_is_none_says_what_is_wrong(self, names: str, error: str) -> None:
        files = [write_named_key("helper", name, new_tls_key().public_key()) for name in names]
        with pytest.raises(Malformed, match=error):
            read_helpers(b"".join(files))

    def test_another_text_names_its_line(self) -> None:
        key = write_named_key("helper", "a", new_tls_key().public_key())
        for text, line in ((key + b"device b\n", 6), (b"x\n" + key, 1), (key[:60], 1)):
            with pytest.raises(Malformed, match=f"line {line}: expected"):
                read_helpers(text)
