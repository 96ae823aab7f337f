import json
import re
from pathlib import Path

import pytest

from experiments.state_transfer.run import PACKINGS, digits, measure, parts_of, shuffled, unshuffled

HERE = Path(__file__).parents[2] / "experiments" / "state_transfer"


def test_a_shuffle_is_undone_to_the_byte():
    data = bytes(range(16))
    assert shuffled(data)[:4] == bytes([0, 4, 8, 12])
    assert unshuffled(shuffled(data)) == data


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_trained_state_hardly_shrinks(packing):
    part, data = next(parts_of(*digits(steps=20)))
    row = measure("digits", part, packing, data, megabytes=1.0)
    assert part == "all"
    assert 1.0 < row.ratio < 1.5


def test_the_page_says_what_the_results_say():
    page = (HERE / "README.md").read_text(encoding="utf-8")
    rows = json.loads((HERE / "results.json").read_text(encoding="utf-8"))["rows"]
    said = re.findall(
        r"^\| (\w+) \| (.+?) \| ([\d.]+), (\d+), (\d+) \| (.+?) \|$", page, flags=re.M
    )
    shown = {}
    for model, part, *figures, rest in said:
        shown[model, part] = [tuple(figures), tuple(rest.split(", "))]
    assert len(shown) * 2 == len(rows)
    network = json.loads((HERE / "network.json").read_text(encoding="utf-8"))["rows"]
    for limit in {row["limit"] for row in network}:
        lost = [row["lost_s"] for row in network if row["limit"] == limit]
        assert f"| {sum(lost) / len(lost):.2f} | {min(lost):.2f} to {max(lost):.2f} |" in page
    for one in rows:
        figures = (f"{one['ratio']:.2f}", f"{one['pack_mb_s']:.0f}", f"{one['unpack_mb_s']:.0f}")
        assert shown[one["model"], one["part"]][list(PACKINGS).index(one["packing"])] == figures
