"""Facts that bind a device in surveys of secret sums: it answers each node once, by one scale.

A device that told its side of one split in two ways, or its numbers by two scales, would tell more
of itself than its group.
"""

import secrets

import msgspec

from edge_client.core.sums import Declined
from edge_client.core.survey import bindings_of
from edge_client.storage.files import Files, with_hash, without_hash
from wire.errors import Malformed
from wire.secret.survey import SurveySum, TellGroup

SURVEYS = "surveys.json"


class _Surveys(msgspec.Struct, frozen=True):
    rounding: bytes
    """Random bytes from which the rounding of numbers is drawn."""
    bundles: dict[str, dict[str, str]] = {}
    """Digests of facts by name, by digest of the bundle."""


class SurveyStore:
    """File with what a device is bound to, by bundle.

    The file is never set aside: without it, a device could tell more of itself.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def bind(self, bundle: str, verb: SurveySum | TellGroup) -> bytes:
        """Bind the device to the facts of a verb, and return the seed of its rounding.

        Raises:
            Declined: the device is bound to other facts, or the file is damaged.
            OSError: the file cannot be read or written. Nothing may be told.
        """
        stored = self._load() or _Surveys(secrets.token_bytes(32))
        before, facts = stored.bundles.get(bundle, {}), bindings_of(verb)
        for name, fact in facts.items():
            if before.get(name, fact) != fact:
                raise Declined(
                    f"survey: {name.strip()} was another one before, and a device tells its group "
                    "by one only"
                )
        after = {**before, **facts}
        if after != before:
            bundles = {**stored.bundles, bundle: after}
            text = msgspec.json.encode(msgspec.structs.replace(stored, bundles=bundles))
            self._files.write(SURVEYS, with_hash(text))
        return stored.rounding

    def _load(self) -> _Surveys | None:
        payload = self._files.read(SURVEYS)
        if payload is None:
            return None
        try:
            return msgspec.json.decode(without_hash(payload), type=_Surveys)
        except (Malformed, msgspec.MsgspecError):
            raise Declined(
                f"{SURVEYS} is damaged, so this device no longer knows what it has told of its "
                "group. Enrol it anew, with an empty state folder."
            ) from None
