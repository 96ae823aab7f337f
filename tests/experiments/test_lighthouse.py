"""The judge of the lighthouse's experiment says what does not hold."""

import pytest

from experiments.lighthouse import report

OURS = "torchLoom, 5000 ms"
GOOD = {
    "stalls": [
        {"arm": OURS, "strike": "leave", "stall_s": 0.04, "failed": 0},
        {"arm": OURS, "strike": "kill -9", "stall_s": 0.05, "failed": 1},
        {"arm": "torchft, 5000 ms", "strike": "leave", "stall_s": 5.0, "failed": 0},
    ],
    "restarts": [
        {
            "arm": OURS,
            "restarts": [
                {"scene": "at rest", "failed": 0, "short": 0, "stall_s": 1, "stood_still": False},
                {
                    "scene": "while a group dies",
                    "failed": 1,
                    "short": 0,
                    "stall_s": 1,
                    "stood_still": False,
                },
            ],
            "ids_back": 0,
            "unequal": 0,
            "compared": 9,
        }
    ],
    "takeovers": [0.6],
    "scale": [{"arm": "torchLoom", "groups": 100, "cpu": 0.1, "rss_mb": 99, "rounds_s": [0.1]}],
    "histories": {"played": 9, "undecidable": 1, "quorums": 7, "different": 0},
    "fuzz": {"sent": 9, "quorums": 2, "harmed": 0, "alive": True, "rss_mb": 70.0, "log_lines": 1},
}


def test_what_holds_is_not_complained_of_whatever_torchft_does():
    assert report.broken(GOOD) == []
    assert report.broken({}) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("stalls", 0, "stall_s"), 0.3),
        (("stalls", 0, "failed"), 1),
        (("stalls", 1, "stall_s"), 0.4),
        (("stalls", 1, "failed"), 2),
        (("restarts", 0, "restarts", 0, "failed"), 1),
        (("restarts", 0, "restarts", 0, "short"), 1),
        (("restarts", 0, "restarts", 0, "stood_still"), True),
        (("restarts", 0, "restarts", 1, "failed"), 2),
        (("restarts", 0, "ids_back"), 1),
        (("restarts", 0, "unequal"), 1),
        (("takeovers", 0), 2.1),
        (("scale", 0, "cpu"), 0.3),
        (("scale", 0, "rss_mb"), 151),
        (("histories", "different"), 1),
        (("fuzz", "harmed"), 1),
        (("fuzz", "alive"), False),
    ],
)
def test_each_thing_that_must_hold_is_looked_at(path, value):
    assert len(report.broken(changed(GOOD, path, value))) == 1


def changed(of, path, value):
    if not path:
        return value
    copy = of.copy()
    copy[path[0]] = changed(of[path[0]], path[1:], value)
    return copy


def test_all_of_it_can_be_shown_and_drawn(tmp_path):
    from rich.console import Console

    console = Console(record=True, width=200)
    report.show(GOOD, console)
    assert "0.04 (0.04 to 0.04)" in console.export_text()
    report.draw(GOOD, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"stalls.png", "scale.png"}
