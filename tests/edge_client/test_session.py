"""The session: a plan is worked on once, whatever comes in whatever order. The vectors of
session.json have it step by step."""

from hypothesis import given
from hypothesis import strategies as st

from edge_client.core.offers import in_use, on_failed, on_release, on_trying, open_offer
from edge_client.core.ports import Current
from edge_client.core.report import Machine
from edge_client.core.session import (
    MOST_TRIES,
    Session,
    on_executed,
    on_plan,
    on_reply,
    on_start,
    on_stopped,
)
from tests.support.plans import plan
from wire import messages as m

A, B = "a" * 64, "b" * 64


class TestSession:
    def test_a_plan_is_executed_once(self) -> None:
        session, action = on_plan(Session(), plan(1), "text", 0.0)
        assert action.kind == "work"
        session = on_executed(session, plan(1), A)
        assert on_plan(session, plan(1), "text", 0.0)[1].kind == "send"
        session, action = on_reply(session, m.Acknowledge("d0", A))
        assert (session.stage, action.kind) == ("answered", "drop")
        assert on_plan(session, plan(1), "text", 0.0)[1].kind == "none"
        assert on_plan(session, plan(2), "text", 0.0)[1].kind == "work"

    def test_an_answer_to_another_update_changes_nothing(self) -> None:
        session = on_executed(on_plan(Session(), plan(2), "", 0.0)[0], plan(2), A)
        assert on_reply(session, m.Acknowledge("d0", B))[0] == session
        assert on_reply(session, m.Refuse("d0", "malformed", "", "check-in"))[0] == session

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["plan", "start", "stop", "done", "ack", "refuse"]),
                st.integers(1, 5),
            ),
            max_size=40,
        )
    )
    def test_no_round_is_worked_on_after_it_was_answered_and_none_more_than_it_may_be(
        self, history: list[tuple[str, int]]
    ) -> None:
        session, answered, died = Session(), 0, 0
        for kind, number in history:
            if kind == "plan":
                session, action = on_plan(session, plan(number), "", 0.0)
                assert action.kind != "work" or number > answered
                died = 0 if action.kind == "work" else died
            elif kind == "start" and session.stage == "working":
                session, action = on_start(session, Machine())
                assert action.kind == ("decline" if died >= MOST_TRIES else "work")
                died += 1
            elif kind == "stop" and session.stage == "working" and died:
                session, died = on_stopped(session), died - 1
            elif kind == "done" and session.plan is not None:
                session = on_executed(session, session.plan, A)
            elif kind in ("ack", "refuse"):
                reply = (
                    m.Acknowledge("d0", A)
                    if kind == "ack"
                    else m.Refuse("d0", "malformed", "", "update", A)
                )
                session, action = on_reply(session, reply)
                answered = (
                    session.plan.round if action.kind == "drop" and session.plan else answered
                )


class TestOffer:
    OFFER = m.Finish("d0", "r", 3, A, B, number=1)

    def test_a_model_that_failed_is_not_tried_again_because_it_is_offered_again(self) -> None:
        session = on_failed(on_trying(on_reply(Session(), self.OFFER)[0]), "it does not answer")
        again, _ = on_reply(session, m.Finish("d0", "r", 4, A, B, number=2))
        assert (problem(again), again.offered_epoch) == ("it does not answer", 4)
        assert in_use(again, "d0", None) == m.InUse("d0", 0, 2, "it does not answer")
        assert open_offer(again, None) is None
        other, _ = on_reply(session, m.Finish("d0", "r", 4, A, A, number=3))
        assert problem(other) == ""

    def test_a_model_that_ends_the_client_is_given_up(self) -> None:
        session, _ = on_reply(Session(), self.OFFER)
        for _ in range(MOST_TRIES):
            session = on_trying(session)
            assert problem(session) == ""
        assert "ended this client" in problem(on_trying(session))

    def test_a_finish_beside_releases_offers_nothing(self) -> None:
        session, _ = on_plan(Session(), plan(7), "", 0.0)
        session, _ = on_reply(session, m.Finish("d0", "r", 3, A, B, releases=True))
        assert (session.offer, session.stage) == (None, "answered")

    def test_an_old_finish_again_offers_nothing(self) -> None:
        session, _ = on_reply(Session(), self.OFFER)
        second, _ = on_reply(session, m.Finish("d0", "second", 3, A, A, number=2))
        for again in (self.OFFER, m.Finish("d0", "second", 3, A, A, number=2)):
            assert on_reply(second, again)[0] == second
        unnumbered, _ = on_reply(second, m.Finish("d0", "third", 3, A, B))
        assert unnumbered == second
        back, _ = on_reply(second, m.Finish("d0", "r", 3, A, B, number=3))
        assert back.offer == session.offer

    def test_an_old_finish_after_a_release_offers_nothing(self) -> None:
        session, _ = on_reply(Session(), self.OFFER)
        session = on_release(session, m.Release("d0", 3, 2, "g", "second", A, A))
        assert on_reply(session, self.OFFER)[0].offer == session.offer

    def test_an_old_release_after_a_finish_offers_nothing(self) -> None:
        session, _ = on_reply(Session(), m.Finish("d0", "second", 3, A, A, number=2))
        assert on_release(session, m.Release("d0", 3, 1, "g", "r", A, B)) == session

    @given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3), st.booleans()), max_size=20))
    def test_the_number_of_the_last_offer_never_falls(
        self, offers: list[tuple[int, int, bool]]
    ) -> None:
        session = Session()
        for number, epoch, is_finish in offers:
            before = session
            if is_finish:
                model = f"{number:064x}"
                finish = m.Finish("d0", "r", epoch, A, model, number=number)
                session, _ = on_reply(session, finish)
                last_epoch = before.offered_epoch
            else:
                session = on_release(session, m.Release("d0", epoch, number, "g", "r", A, B))
                last_epoch = before.released_epoch
            is_new = number > before.released and epoch >= last_epoch
            assert session.released == (number if is_new else before.released)
            assert (session.offer == before.offer) == (not is_new)

    def test_what_is_in_use_is_said_of_the_last_offer_alone(self) -> None:
        session = on_failed(on_release(Session(), m.Release("d0", 1, 4, "g", "r", A, B)), "no")
        current = Current(A, B, "", "r", 1, 0.0, release=3)
        assert in_use(session, "d0", current) == m.InUse("d0", 3, 4, "no", model=B)
        session, _ = on_reply(session, m.Finish("d0", "other", 3, A, B, number=5))
        assert in_use(session, "d0", current) == m.InUse("d0", 3, 5, model=B)


def problem(session: Session) -> str:
    assert session.offer is not None
    return session.offer.problem
