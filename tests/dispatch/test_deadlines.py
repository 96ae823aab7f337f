"""The commands past their deadline are those that a look at all of them finds."""

from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.live.dispatch.deadlines import Deadlines

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 20)),
        st.tuples(st.just("drop"), st.integers(0, 20)),
        st.tuples(st.just("ask"), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(_steps)
def test_commands_before_a_moment_come_in_the_order_they_were_added(steps):
    deadlines = Deadlines()
    open_ns: dict[str, int] = {}
    for number, (step, value) in enumerate(steps):
        if step == "add":
            open_ns[f"c{number}"] = value
            deadlines.add(f"c{number}", value)
        elif step == "drop" and open_ns:
            command_id = sorted(open_ns)[value % len(open_ns)]
            del open_ns[command_id]
            deadlines.drop(command_id)
        assert deadlines.before(value) == [c for c, ns in open_ns.items() if ns < value]
