"""A device answers a question of a secret sum once, whatever ends it in between."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge_client.core.sums import Declined
from edge_client.storage.answers import ANSWERS, AnswerStore
from edge_client.storage.files import Files, FolderFiles, MemoryFiles
from tests.helper.exchange import Exchange
from wire.arrays.tensors import Tensors
from wire.secret.question import Share, SignedShare, SumQuestion

A = Exchange().question
B = msgspec.structs.replace(A, about="b" * 64)


@pytest.fixture(params=["folder", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return FolderFiles(tmp_path) if request.param == "folder" else MemoryFiles()


def signed_as(text: bytes) -> tuple[SignedShare, Tensors]:
    share = Share(A.digest, "d1", bytes(16), "c" * 64, ())
    return SignedShare(share, "signature"), {"masked/p": np.frombuffer(text, np.uint8)}


def answer(files: Files, question: SumQuestion, text: bytes) -> bytes:
    """The answer of a client that has just been started."""
    signed, tensors = AnswerStore(files).once(question, lambda: signed_as(text))
    assert signed == signed_as(text)[0]
    return tensors["masked/p"].tobytes()


def test_the_same_question_gets_the_same_bytes(files: Files) -> None:
    assert answer(files, A, b"first") == b"first"
    assert answer(files, A, b"second") == b"first"


def test_a_question_that_comes_again_after_another_one_is_declined(files: Files) -> None:
    answer(files, A, b"first")
    assert answer(files, B, b"second") == b"second"
    with pytest.raises(Declined, match=f"question {A.digest[:12]} was answered before"):
        answer(files, A, b"third")
    assert answer(files, B, b"fourth") == b"second"


def test_questions_of_many_rounds_are_remembered(files: Files) -> None:
    questions = [msgspec.structs.replace(A, closes_at_s=float(number)) for number in range(300)]
    for question in questions:
        answer(files, question, b"once")
    for question in questions[:-1]:
        with pytest.raises(Declined):
            answer(files, question, b"twice")
    assert files.size(ANSWERS) < 300 * 32 + 1000


def test_an_answer_that_fails_or_cannot_be_stored_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FolderFiles(tmp_path)

    def fail() -> tuple[SignedShare, Tensors]:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        AnswerStore(files).once(A, fail)
    (tmp_path / f"{ANSWERS}.new").mkdir()  # nothing can be written in its place
    with pytest.raises(OSError, match="answers"):
        answer(files, A, b"lost")
    (tmp_path / f"{ANSWERS}.new").rmdir()
    assert answer(files, A, b"first") == b"first"


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_damaged_file_answers_nothing_more(files: Files, at: int) -> None:
    answer(files, A, b"first")
    payload = bytearray(files.read(ANSWERS) or b"")
    payload[at] ^= 1
    files.write(ANSWERS, bytes(payload))
    for question in (A, B):
        with pytest.raises(Declined, match=r"is damaged .* Enrol it anew"):
            answer(files, question, b"second")
