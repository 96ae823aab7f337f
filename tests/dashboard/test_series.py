"""A page has of a series what it wants to look at, as fine as that is still known."""

import json

import numpy as np

from tests.dashboard.house import open_house, sees
from torchloom_core.live.dashboard import browser
from torchloom_core.live.dashboard.downsampling import POINTS, Downsampled


def begins(at_s):
    return lambda update: update.get("series", {}).get("loss", [[None]])[0][0] == at_s


def ends(at_s):
    return lambda update: update.get("series", {}).get("loss", [[None]])[-1][0] == at_s


async def look(socket, since_s):
    """Return when the points of the loss begin that come of a look."""
    await socket.send(json.dumps({"series": ["loss"], "since_s": since_s}))
    update = await sees(socket, begins(since_s))
    return np.array(update["series"]["loss"])[:, 0]


async def test_an_open_page_gets_the_full_state_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(browser, "_EVERY_S", 0.01)
    async with open_house(tmp_path) as house:
        series = house.state.board.series["loss"] = Downsampled()
        series.add(0.0, 1.0, 2.0, 3.0)
        page = await house.enter()
        await look(page, 0)
        for number in range(1, 100):
            for second in range(100 * (number - 1) + 1, 100 * number + 1):
                series.add(float(second), 1.0, 2.0, 3.0)
            update = (await sees(page, ends(100 * number)))["series"]["loss"]
            if number > 1 and update[0][0] == 0:
                break
        assert POINTS < 100 * number <= 3 * POINTS
        assert len(update) <= POINTS
