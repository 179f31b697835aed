"""The session: a plan is worked on once, whatever comes in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from edge_client.core.session import Session, on_executed, on_plan, on_reply
from tests.edge_client.plans import plan
from wire import messages as m


class TestSession:
    def test_a_plan_is_executed_once(self) -> None:
        session, action = on_plan(Session(), plan(1))
        assert action.kind == "work"
        session = on_executed(session, plan(1))
        assert on_plan(session, plan(1)) == (session, on_plan(session, plan(1))[1])
        assert on_plan(session, plan(1))[1].kind == "send"
        session, action = on_reply(session, m.Acknowledge("r", 1))
        assert (session.pending, action.kind) == (None, "drop")
        assert on_plan(session, plan(1))[1].kind == "none"
        assert on_plan(session, plan(2))[1].kind == "work"

    def test_a_refused_round_is_tried_again_only_when_it_was_opened_again(self) -> None:
        session = on_executed(on_plan(Session(), plan(2))[0], plan(2))
        session, _ = on_reply(session, m.Refuse("not-finite", "", "r", 2))
        assert on_plan(session, plan(2))[1].kind == "none"
        session, action = on_plan(session, plan(2, deadline_at_s=99.0))
        assert action.kind == "work"
        session, _ = on_reply(on_executed(session, plan(2, deadline_at_s=99.0)), m.Acknowledge("r", 2))
        assert on_plan(session, plan(2, deadline_at_s=199.0))[1].kind == "none"

    def test_another_run_starts_afresh(self) -> None:
        session, _ = on_plan(Session(run_id="old", answered=7), plan(1, "new"))
        assert (session.run_id, session.answered, session.plan) == ("new", 0, plan(1, "new"))

    def test_an_answer_to_another_round_changes_nothing(self) -> None:
        session = on_executed(on_plan(Session(), plan(2))[0], plan(2))
        assert on_reply(session, m.Acknowledge("r", 1))[0] == session
        assert on_reply(session, m.Acknowledge("other", 2))[0] == session

    @given(st.lists(st.tuples(st.sampled_from(["plan", "done", "ack", "refuse"]), st.integers(1, 5)), max_size=30))
    def test_no_round_is_worked_on_after_it_was_answered(self, history: list[tuple[str, int]]) -> None:
        session, answered = Session(), 0
        for kind, number in history:
            if kind == "plan":
                session, action = on_plan(session, plan(number))
                assert action.kind != "work" or number > answered
            elif kind == "done" and session.plan is not None:
                session = on_executed(session, session.plan)
            elif kind in ("ack", "refuse"):
                reply = m.Acknowledge("r", number) if kind == "ack" else m.Refuse("malformed", "", "r", number)
                session, action = on_reply(session, reply)
                answered = number if action.kind == "drop" else answered
            assert session.plan is None or session.plan.round > answered
