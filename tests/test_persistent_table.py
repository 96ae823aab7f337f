"""Stored entries follow the table, one per key, without keys that never existed."""

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from torchloom_core.floor.persistent_table import PersistentTable


class Entry(msgspec.Struct, frozen=True):
    number: int


keys = st.sampled_from("ab")
doings = st.one_of(
    st.tuples(st.just("set"), keys, st.integers(0, 9)),
    st.tuples(st.just("del"), keys, st.just(0)),
    st.tuples(st.just("take"), st.just(""), st.just(0)),
)


SET, DELETE, TAKE = ("set", "a", 1), ("del", "a", 0), ("take", "", 0)


@given(st.lists(doings, max_size=30))
@example([SET, TAKE, DELETE, TAKE, SET, DELETE])
def test_the_changes_reproduce_the_table_and_name_no_key_it_never_had(script):
    table: PersistentTable[Entry] = PersistentTable("thing")
    stored: dict[str, Entry] = {}
    changed: list[str] = []
    for what, key, number in [*script, TAKE]:
        match what:
            case "set":
                table[key] = Entry(number)
                changed.append(key)
            case "del" if key in table:
                del table[key]
                changed.append(key)
                if f"thing.{key}" not in stored:
                    changed = [other for other in changed if other != key]
            case "take":
                changes = table.take_changes()
                assert list(changes) == [f"thing.{key}" for key in dict.fromkeys(changed)]
                changed.clear()
                for full, entry in changes.items():
                    if entry is None:
                        del stored[full]
                    else:
                        stored[full] = entry
                assert stored == {f"thing.{key}": entry for key, entry in table.items()}
    assert table.take_changes() == {}
