"""Rows and groups by state, kept up, are what a look at all rows finds."""

from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.live.fleet.standing import OVER, Standing

_STATES = ("joining", "training", "paused", "standby", "left", "gone")
_GROUPS = ("a", "b", "c")
_ROWS = 6

_changes = st.lists(
    st.tuples(st.integers(0, _ROWS - 1), st.sampled_from((*_STATES, *_GROUPS))), max_size=40
)


@given(_changes)
def test_what_is_kept_up_is_what_all_rows_say(changes):
    standing = Standing()
    groups = [_GROUPS[row % len(_GROUPS)] for row in range(_ROWS)]
    for group in groups:
        standing.add(group)
    for row, to in changes:
        if to in _GROUPS:
            groups[row] = to
            standing.place(row, to)
        else:
            standing.move(row, to)
        states = standing.state
        for wanted in (("training", "paused"), ("standby",)):
            assert standing.rows_in(*wanted) == [r for r in range(_ROWS) if states[r] in wanted]
            present = {r: g for r, g in enumerate(groups) if states[r] not in OVER}
            whole = {
                group: [r for r, g in present.items() if g == group]
                for group in present.values()
                if all(states[r] in wanted for r, g in present.items() if g == group)
            }
            assert list(standing.groups(*wanted).items()) == list(whole.items())
        assert standing.training == set(standing.groups("training", "paused"))
        assert sorted(standing.each_in(OVER)) == standing.rows_in(*OVER)
        for group in _GROUPS:
            assert standing.rows_of(group) == [r for r, g in enumerate(groups) if g == group]
