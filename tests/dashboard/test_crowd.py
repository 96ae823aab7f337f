"""However many pages there are, and whatever one of them does, the others are shown the run."""

import asyncio
import json
import sys
from collections import Counter

import pytest
from msgspec.structs import replace
from websockets.exceptions import ConnectionClosed

from tests.dashboard.house import open_house, sees
from tests.dashboard.workers import batch, hello
from tests.waiting import eventually
from torchloom_core.live.dashboard import app, browser, serve

MOST_BYTES = 16_384
AT_ONCE = 100


async def fate(browser_socket):
    """Return the code with which a browser is turned away, 0 of one that is shown the run."""
    try:
        await sees(browser_socket, lambda update: "run" in update)
    except ConnectionClosed as closed:
        return closed.rcvd.code
    return 0


def says(text):
    return lambda update: update.get("run", {}).get("trouble") == text


def tells_of(worker):
    return lambda update: update.get("worker", {}).get("worker") == worker


async def test_a_page_gets_its_own_mark_with_later_updates(tmp_path):
    async with open_house(tmp_path) as house:
        page = await house.enter()
        assert (await sees(page, lambda update: "run" in update))["run"]["mark"] == 0
        for mark in (1, 2, 7):
            house.change(f"before {mark}")
            await page.send(json.dumps({"worker": "g0-0", "mark": mark}))
            update = await sees(page, lambda got, mark=mark: got.get("run", {}).get("mark") == mark)
            assert update["run"]["trouble"] == f"before {mark}"


async def test_one_browser_takes_no_more_than_its_share(tmp_path):
    async with open_house(tmp_path) as house:
        pages = [await house.enter() for _ in range(app.MOST_OF_ONE + 1)]
        codes = Counter([await fate(page) for page in pages])
        assert codes == {0: app.MOST_OF_ONE, 1013: 1}
        assert await fate(await house.enter(cookie=house.let_in())) == 0


@pytest.mark.parametrize("how", ["whole", "in parts", "packed"])
async def test_a_message_beyond_its_size_ends_its_own_socket_however_it_comes(tmp_path, how):
    async with open_house(tmp_path) as house:
        other = await house.enter()
        sender = await house.enter("deflate" if how == "packed" else None)
        look = json.dumps({"worker": "g0-0"}).ljust(MOST_BYTES)
        await sender.send(look)
        await sees(sender, tells_of("g0-0"))
        look = json.dumps({"worker": "g1-0"}).ljust(MOST_BYTES + 1)
        half = MOST_BYTES // 2
        await sender.send([look[:half], look[half:]] if how == "in parts" else look)
        with pytest.raises(ConnectionClosed) as closed:
            await sees(sender, tells_of("g1-0"))
        assert closed.value.rcvd.code == 1009
        house.change("goes on")
        await sees(other, says("goes on"))


@pytest.mark.slow
async def test_of_a_thousand_sockets_the_excess_is_asked_to_retry(tmp_path):
    async with open_house(tmp_path) as house:
        first = await house.enter()
        assert await fate(first) == 0
        some = asyncio.Semaphore(AT_ONCE)

        async def come():
            async with some:
                one = await house.enter(cookie=house.let_in())
                return one, await fate(one)

        crowd = await asyncio.gather(*(come() for _ in range(999)))
        codes = Counter(code for _, code in crowd)
        assert codes == {0: app.MOST_BROWSERS - 1, 1013: 1000 - app.MOST_BROWSERS}
        house.change("goes on")
        await sees(first, says("goes on"))
        leaver = next(one for one, code in crowd if code == 0)
        await leaver.close()

        async def another():
            return await fate(await house.enter()) == 0

        await eventually(another)


@pytest.mark.slow
async def test_nothing_more_is_made_for_a_frozen_browser_and_the_others_are_shown_all(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(browser, "PATIENCE_S", 1e9)
    monkeypatch.setattr(browser, "_EVERY_S", 0.01)
    async with open_house(tmp_path) as house:
        others = [await house.enter() for _ in range(19)]
        await house.freeze({"worker": "g1-0"})
        update = house.state.board.update
        await eventually(lambda: update["g1-0"] > 0)

        async def show(numbers):
            for number in numbers:
                house.change(str(number))
                await asyncio.gather(*(sees(one, says(str(number))) for one in others))

        await show(range(40))
        made = update["g1-0"]
        await show(range(40, 80))
        assert update["g1-0"] == made


LETS_GO = ["the dashboard", *(["the kernel"] if sys.platform == "linux" else [])]


@pytest.mark.parametrize("who", LETS_GO)
async def test_a_frozen_browser_is_let_go_and_another_has_its_place(tmp_path, monkeypatch, who):
    patient = serve if who == "the dashboard" else browser
    for module in (serve, browser):
        monkeypatch.setattr(module, "PATIENCE_S", 1e5 if module is patient else 0.2)
    monkeypatch.setattr(browser, "_CLOSE_S", 0.1 if who == "the dashboard" else 1e9)
    monkeypatch.setattr(browser, "_EVERY_S", 0.01)
    monkeypatch.setattr(app, "MOST_BROWSERS", 1)
    async with open_house(tmp_path) as house:
        await house.freeze({"worker": "g1-0"})
        await eventually(lambda: house.state.board.update["g1-0"] > 0)

        async def another():
            house.change("more")
            return await fate(await house.enter()) == 0

        await eventually(another)


async def test_a_page_with_a_heatmap_gets_the_exact_outliers(tmp_path):
    async with open_house(tmp_path) as house:
        board = house.state.board
        for worker, loss in (("g0-0", 2.0), ("g1-0", 1e6)):
            board.take(batch([{"loss": loss, "lr": 0.1}], worker=worker), house.state.now_s)
        page = await house.enter()
        await page.send(json.dumps({"metric": "loss"}))
        update = await sees(page, lambda update: "extremes" in update)
        assert update["extremes"] == [[1, 1e6], [0, 2.0]]
        await page.send(json.dumps({"metric": "lr"}))
        update = await sees(page, lambda update: "extremes" in update)
        assert update["extremes"] == [[0, 0.1], [1, 0.1]]


async def test_a_page_gets_the_ranks_that_finish_no_step(tmp_path):
    async with open_house(tmp_path) as house:
        now_s = house.state.now_s
        frozen = replace(batch([], worker="g1-0", step=7), progress_age_s=60.0)
        for update in (batch([], step=9), frozen):
            house.state.board.take(update, now_s)
        page = await house.enter()
        update = await sees(page, lambda update: "run" in update)
        assert update["run"]["health"]["reasons"][0][1].endswith(
            "finished no step for over 10 s: g1-0 at step 7"
        )
        assert update["run"]["health"]["level"] == "unhealthy"
        assert update["run"]["slow"] == []


async def test_a_page_gets_the_step_of_the_run_not_of_one_rank(tmp_path):
    async with open_house(tmp_path) as house:
        board, now_s = house.state.board, house.state.now_s
        board.add(hello("g2-0"), now_s)
        for worker, step in (("g0-0", 9), ("g1-0", 9), ("g2-0", 2**53)):
            board.take(batch([], worker=worker, step=step), now_s)
        board.close_second(now_s)
        page = await house.enter()
        update = await sees(page, lambda update: "run" in update)
        assert update["run"]["step"] == 9
