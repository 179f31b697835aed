"""Answers to questions of secret sums: a device gives one to each question, for ever.

Numbers are rounded at random, and a device's data change. Two answers to one question would tell
more of the device than the question does.
"""

from collections.abc import Callable

import numpy as np

from edge_client.core.sums import Declined
from edge_client.storage.files import Files, with_hash, without_hash
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors, encode_tensors
from wire.codec import decode, encode
from wire.errors import Malformed
from wire.secret.question import SignedShare, SumQuestion

ANSWERS = "answers.safetensors"
_NUM_BYTES_OF_DIGEST = 32


class AnswerStore:
    """File with the digest of every question that was answered, and with the last answer.

    The file is never set aside: without its digests, questions could be answered again.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def once(
        self, question: SumQuestion, make: Callable[[], tuple[SignedShare, Tensors]]
    ) -> tuple[SignedShare, Tensors]:
        """Return the answer to a question: the stored one, or a new one, which is stored first.

        The answer is a signed share, with the tensors of the update.

        Raises:
            Declined: the question was answered before another one, and its answer is no longer
                stored; or the file is damaged.
            OSError: the file cannot be read or written. Nothing has been answered.
        """
        answered, last = self._load()
        new = bytes.fromhex(question.digest)
        if answered and answered[-1] == new:
            tensors, text = decode_tensors(last, OWN_FILES)
            return decode(text, SignedShare), tensors
        if new in answered:
            raise Declined(
                f"question {question.digest[:12]} was answered before, and a device answers once"
            )
        signed, tensors = make()
        stored: Tensors = {
            "questions": np.frombuffer(b"".join([*answered, new]), np.uint8),
            "answer": np.frombuffer(encode_tensors(tensors, encode(signed)), np.uint8),
        }
        self._files.write(ANSWERS, with_hash(encode_tensors(stored)))
        return signed, tensors

    def _load(self) -> tuple[list[bytes], bytes]:
        """Return the digests of all questions answered, in order, and the last answer."""
        payload = self._files.read(ANSWERS)
        if payload is None:
            return [], b""
        try:
            tensors, _ = decode_tensors(without_hash(payload), OWN_FILES)
        except Malformed as error:
            raise Declined(
                f"{ANSWERS} is damaged ({error}), so this device no longer knows which questions "
                "it has answered. Enrol it anew, with an empty state folder."
            ) from None
        text = tensors["questions"].tobytes()
        size = _NUM_BYTES_OF_DIGEST
        digests = [text[at : at + size] for at in range(0, len(text), size)]
        return digests, tensors["answer"].tobytes()
