"""What a person sees on the page of a real run, and does there, by mouse and by keys alone."""

import io
import re
import signal

import pytest
from PIL import Image
from safetensors.torch import save_file

from tests.browser.person import apart, drive, leave
from tests.dashboard.test_backtest import write
from tests.integration.browser import CONFIG, Dashboard
from tests.integration.landscape_trainer import NEWEST, network
from tests.integration.preview_trainer import NEWEST as REHEARSED
from tests.integration.preview_trainer import Script
from tests.recorded_epoch import Recorder
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.messages import Hello, Note
from torchloom_core.wire.requests import Annotate, Request

pytestmark = [pytest.mark.integration, pytest.mark.long]

GUARD = "[guard]\nwindow_s = 2.0\n"


@pytest.fixture(scope="module")
def run(start_run):
    run = start_run(CONFIG + GUARD)
    run.start_weaver()
    write(run.folder / "small-evaluation", {})  # a report of a backtest, beside the config
    for group in ("g0", "g1", "g2"):
        run.start_light(group, "--step-s", "0.05")
    run.training("g0", "g1", "g2")
    return run


@pytest.fixture
def tab(dashboard, new_tab):
    tab = new_tab()
    tab.page.goto(dashboard.links[-1])
    tab.sees("data as of")
    return tab


def colours_of(picture):
    """Return how many colours a screenshot has."""
    return len(Image.open(io.BytesIO(picture)).convert("RGB").getcolors(1 << 24))


def ask(run, verb):
    return apart(lambda: run.ask(verb))


def test_the_first_screen_says_whether_the_run_is_well(tab):
    page = tab.page
    assert "token" not in page.url
    well = page.get_by_label("Run health")
    well.get_by_text("3 ranks train; none is slow, stalled, failed or unreachable").wait_for()
    page.locator("#health").get_by_text("Healthy").wait_for()
    vitals = page.locator("#vitals")
    tab.waits(lambda: "3 of 3 ranks" in vitals.inner_text())
    tab.waits(lambda: re.search(r"Goodput\n\d+\.\d %", vitals.inner_text()))
    assert "-1" not in vitals.inner_text()
    assert "g1 training" in page.get_by_role("group", name="Health by replica group").inner_text()
    page.locator("canvas").first.wait_for()
    tab.until("[...document.querySelectorAll('canvas')].some(c => c.width > 100)")
    painted = page.evaluate(
        "() => { const c = document.querySelector('.chart canvas');"
        " return new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size }"
    )
    assert painted > 2


def test_a_cordon_is_undone_by_a_click_as_long_as_it_lasts(tab, run):
    node = apart(lambda: run.worker("g2-0"))["node"]
    cordon = {"kind": "cordon", "node": node, "lasts_s": 5.0}
    apart(lambda: run.ask("propose", {"action": cordon}))
    undo = tab.page.get_by_role("button", name=f"Undo: uncordon {node}")
    undo.wait_for()
    tab.sees(f"Nothing to undo: {node} is not cordoned any more.")
    assert not undo.count()


def test_what_is_far_from_what_is_in_use_is_asked_back(tab, run):
    drive(tab)
    tab.page.get_by_role("tab", name="Knobs").click()
    tab.page.get_by_label("new value of x").fill("90")
    tab.page.keyboard.press("Enter")  # the question is answered with yes
    tab.waits(lambda: ask(run, "knobs")["values"]["g0-0"]["x"] == 90)
    tab.page.get_by_role("button", name="Undo: back to").click()
    tab.page.get_by_role("row", name=re.compile("^x .* 1 1 ")).wait_for()
    leave(tab)


def test_by_keys_alone_a_worker_is_found_a_knob_turned_and_all_stopped(tab, run):
    page = tab.page
    keys = page.keyboard
    keys.press("w")
    keys.type("bob")
    keys.press("Enter")
    tab.sees("You are in control")
    keys.press("/")
    keys.type("g1-0")
    keys.press("Enter")
    page.get_by_role("heading", name="g1-0").wait_for()
    keys.press("Escape")
    page.locator("canvas.heatmap").focus()
    keys.press("Home")
    keys.press("ArrowRight")
    tab.waits(lambda: "group" in tab.message)
    worker = tab.message.partition(",")[0]
    keys.press("Enter")
    page.get_by_role("heading", name=worker).wait_for()
    keys.press("3")
    page.get_by_label("new value of x").focus()
    keys.press("Control+a")
    keys.type("1.5")
    keys.press("Enter")
    tab.waits(lambda: ask(run, "knobs")["values"]["g0-0"]["x"] == 1.5)
    page.get_by_role("button", name="Undo: back to 1", exact=True).wait_for()
    page.get_by_role("row", name=re.compile("^x .* 1.5 1.5 ")).wait_for()  # what it goes back to
    keys.press("Control+a")  # it is still in the field
    keys.type("2.5")
    keys.press("Enter")
    tab.waits(lambda: ask(run, "knobs")["values"]["g0-0"]["x"] == 2.5)
    page.get_by_role("button", name="Undo: back to 1.5").press("Enter")
    tab.waits(lambda: ask(run, "knobs")["values"]["g0-0"]["x"] == 1.5)
    tab.until("document.activeElement.getAttribute('aria-label') === 'new value of x'")
    keys.press("Escape")
    keys.press("!")
    tab.waits(lambda: ask(run, "status")["stopped"])
    resume = page.get_by_role("button", name="resume actions")
    tab.waits(resume.is_enabled)
    resume.focus()
    keys.press("Enter")
    tab.waits(lambda: not ask(run, "status")["stopped"])
    page.get_by_label("new value of x").fill("1")
    keys.press("Enter")
    tab.waits(lambda: ask(run, "knobs")["values"]["g0-0"]["x"] == 1)
    leave(tab)


def test_who_does_not_drive_sees_who_does_and_can_stop_everything(tab, dashboard, new_tab, run):
    drive(tab)
    other = new_tab()
    other.page.goto(dashboard.links[-1])
    other.sees("ann is in control")
    other.page.get_by_role("tab", name="Knobs").click()
    assert other.page.get_by_label("new value of x").is_disabled()
    other.page.get_by_role("button", name="stop all actions").click()
    tab.waits(lambda: ask(run, "status")["stopped"])
    resume = other.page.get_by_role("button", name="resume actions")
    resume.wait_for()
    assert resume.is_disabled()
    assert resume.get_attribute("title") == "take control first"
    tab.page.get_by_role("button", name="resume actions").click()
    tab.waits(lambda: not ask(run, "status")["stopped"])
    assert tab.questions == ["Actions are stopped. Resume them?"]
    other.page.get_by_role("button", name="stop all actions").wait_for()
    leave(tab)


def test_a_session_that_loses_control_gets_the_new_holder(tab, dashboard, new_tab):
    drive(tab)
    other = new_tab()
    other.page.goto(dashboard.links[-1])
    other.sees("ann is in control")
    drive(other)
    assert "has control. Take it from them?" in other.questions[0]
    tab.sees("another ann is in control")
    assert tab.message == "another ann has taken control from you"
    leave(other)
    assert other.message != "you do not have control any more"


def test_a_click_on_take_takes_control_though_the_name_just_typed_already_holds_it(
    tab, dashboard, run
):
    drive(tab)
    held = ask(run, "status")["controller"]
    tab.page.evaluate("localStorage.removeItem('session')")
    tab.page.reload()
    tab.sees("ann is in control")
    tab.page.evaluate(
        """() => {
            document.getElementById("session-name").value = "ann";
            document.getElementById("control-button").click();
        }"""
    )
    tab.waits(lambda: "control" in tab.message)
    tab.sees("You are in control")
    assert ask(run, "status")["controller"] == held
    leave(tab)


def test_back_leads_to_the_screen_before(tab):
    page = tab.page
    for key, address in (("2", "#fleet"), ("6", "#timeline"), ("3", "#knobs")):
        page.keyboard.press(key)
        tab.waits(lambda address=address: page.url.endswith(address))
    page.keyboard.press("3")
    page.go_back()
    page.get_by_role("heading", name="Timeline").wait_for()
    page.get_by_label("length of the time range").select_option("1 hour")
    page.go_back()
    tab.waits(lambda: page.get_by_label("length of the time range").input_value() == "900")
    page.go_back()
    page.get_by_role("heading", name="Workers").wait_for()
    page.go_forward()
    page.get_by_role("heading", name="Timeline").wait_for()


def test_a_worker_is_found_by_a_part_of_its_name_or_by_its_group(tab):
    page, keys = tab.page, tab.page.keyboard
    keys.press("/")
    keys.type("G1")
    page.locator("#worker-names option").first.wait_for(state="attached")
    keys.press("Enter")
    page.get_by_role("heading", name="g1-0").wait_for()
    keys.press("Control+a")
    keys.type("-0")
    keys.press("Enter")
    tab.waits(lambda: re.match(r"g0-0, the first of \d+ matches of -0", tab.message))
    page.get_by_role("heading", name="g0-0").wait_for()
    keys.press("Control+a")
    keys.type("nobody")
    keys.press("Enter")
    tab.waits(lambda: "no worker, group or node matches nobody" in tab.message)
    keys.press("1")  # what is typed in a field is no key
    keys.press("Escape")
    page.get_by_label("find a worker").fill("")
    keys.press("Escape")
    keys.press("1")
    keys.press("2")
    assert tab.message == ""


def test_what_cannot_be_taken_back_by_a_click_is_asked_back(tab, run):
    page = tab.page
    earlier = len(list(run.records("request")))
    page.keyboard.press("3")
    pause = page.get_by_role("button", name=re.compile("^Pause"))
    assert pause.get_attribute("title") == "take control first"
    assert page.get_by_label("new value of x").get_attribute("title") == "take control first"
    drive(tab)
    tab.says_yes = False
    tab.waits(pause.is_enabled)
    pause.click()
    page.get_by_role("button", name="rewind to the last checkpoint").click()
    page.get_by_label("new value of x").fill("90")
    page.keyboard.press("Enter")
    tab.waits(lambda: tab.message == "x was not set")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("g2")
    page.keyboard.press("Enter")
    for name in ("Migrate g2 to a standby", "Drain g2", "Evict g2", "Cordon"):
        page.get_by_role("button", name=re.compile(f"^{name}")).click()
    tab.waits(lambda: len(tab.questions) == 7)
    assert tab.message == "Nothing was requested."
    leave(tab)
    requests = list(run.records("request"))[earlier:]
    kinds = [body["want"].get("action", {}).get("kind") for _, body in requests]
    assert not {"pause", "rewind", "migrate", "drain", "evict", "cordon"} & set(kinds)


def test_the_first_screen_shows_the_loss_and_not_what_comes_first_by_name(tab):
    series = tab.page.get_by_label("Metrics", exact=True)
    tab.page.get_by_role("img", name=re.compile("^Loss: latest median ")).wait_for()
    shown = series.locator("figcaption b").all_inner_texts()
    assert shown[0] == "Loss"
    assert set(shown) <= {"Loss", "Step time (s)", "Gradient norm"}
    last = series.get_by_label("Also show").locator("option").last
    title = last.inner_text()
    series.get_by_label("Also show").select_option(last.get_attribute("value"))
    tab.page.get_by_role("img", name=re.compile(f"^{re.escape(title)}: latest median ")).wait_for()


def test_by_keys_alone_a_mark_of_the_timeline_opens_what_it_stands_for(tab):
    page, keys = tab.page, tab.page.keyboard
    drive(tab)
    keys.press("Escape")
    keys.press("3")
    page.get_by_label("new value of x").fill("3")
    keys.press("Enter")
    tab.waits(lambda: "knob x = 3" in tab.message)
    keys.press("Escape")
    keys.press("4")
    page.get_by_label("New annotation").fill("look <b>here</b>")
    keys.press("Enter")
    page.get_by_text("look <b>here</b>").wait_for()
    keys.press("Escape")
    keys.press("6")
    lanes = {name: page.get_by_role("group", name=name) for name in ("annotations", "verdicts")}
    for lane in lanes.values():
        lane.get_by_role("button").first.wait_for()
    opened = page.get_by_label("Details of the mark")
    lanes["annotations"].get_by_role("button").last.focus()
    keys.press("Enter")
    opened.get_by_text("look <b>here</b>").wait_for()
    lanes["verdicts"].get_by_role("button").last.focus()
    keys.press("Enter")
    opened.get_by_text("knob x = 3").first.wait_for()
    keys.press("Home")
    first = page.evaluate("document.activeElement.getAttribute('aria-label')")
    keys.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") != first
    page.get_by_role("tab", name="Knobs").click()
    page.get_by_role("button", name="Undo: back to").click()
    page.get_by_role("row", name=re.compile("^x .* 1 1 ")).wait_for()
    leave(tab)


def test_the_address_leads_back_to_a_stretch_of_the_timeline(tab):
    page = tab.page
    page.get_by_role("tab", name="Timeline").click()
    chart = page.locator(".chart .u-over").first
    chart.wait_for()
    assert page.url.endswith("#timeline")
    page.get_by_label("length of the time range").select_option("1 hour")
    assert page.url.endswith("#timeline/now/3600")
    page.get_by_role("button", name="earlier").click()
    whole = page.url
    assert re.search(r"#timeline/20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ/3600$", whole)
    box = chart.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 3 * box["width"] / 4, middle, steps=5)
    page.mouse.up()
    tab.waits(lambda: page.url != whole)
    part = page.url
    assert abs(int(part.rpartition("/")[2]) - 1800) < 60
    page.reload()
    tab.sees("data as of")
    page.get_by_role("heading", name="Timeline").wait_for()
    assert page.url == part
    assert page.get_by_role("link", name="link to this range").get_attribute("href") in part
    page.evaluate(f"location.hash = '{whole.partition('#')[2]}'")
    tab.waits(lambda: page.get_by_label("length of the time range").input_value() == "3600")
    page.evaluate("location.hash = '#timeline/yesterday/1'")
    tab.sees("need #timeline/TIME/SECONDS")


def test_a_recorded_run_has_the_same_timeline(tab, run, new_tab):
    drive(tab)
    tab.page.get_by_role("tab", name="Knobs").click()
    tab.page.get_by_label("new value of x").fill("2")
    tab.page.keyboard.press("Enter")
    tab.waits(lambda: any(body["granted"] for _, body in run.records("verdict")))
    tab.page.get_by_role("button", name="Undo: back to").click()
    tab.page.get_by_role("row", name=re.compile("^x .* 1 1 ")).wait_for()
    leave(tab)
    past = Dashboard(run, 4, run.trajectory)
    back = new_tab()
    back.page.goto(f"{past.links[-1]}#timeline/all")
    back.sees("a recorded run")
    assert back.page.get_by_role("heading", level=1).inner_text() == "torchLoom live"
    back.page.get_by_label("Your name").wait_for(state="hidden")
    for screen, button in (("Record", "Add"), ("Run", "stop all actions")):
        back.page.get_by_role("tab", name=screen).click()
        assert "recorded run" in back.page.get_by_role("button", name=button).get_attribute("title")
        assert back.page.get_by_role("button", name=button).is_disabled()
    back.page.get_by_role("tab", name="Knobs").click()
    back.sees("A recorded run shows no knobs")
    back.page.go_back()
    back.page.go_back()
    back.page.go_back()
    back.page.get_by_role("group", name="verdicts").get_by_role("button").last.click()
    back.page.get_by_label("Details of the mark").get_by_text("granted").first.wait_for()
    back.page.locator(".chart .u-over").first.wait_for()
    assert back.page.url.endswith("#timeline/all")
    past.end()


def test_what_a_worker_writes_is_never_taken_for_markup(tmp_path, run, new_tab):
    markup = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>"
    who = {"run": "run", "worker": "v0-0", "incarnation": 1}
    recorder = Recorder(tmp_path / "record", 1)
    recorder.step(Recovered(epoch=1))
    recorder.step(Hello(**who, group="v0", rank=0, node="n0"))
    fields = {"level": "error", "logger": "mine", "text": markup}
    recorder.step(Note(**who, kind="log", fields=fields))
    recorder.step(Request(id="r1", want=Annotate(text=markup), by="ann"))
    recorder.writer.close()
    past = Dashboard(run, 6, tmp_path / "record")
    tab = new_tab()
    tab.page.goto(past.links[-1])
    for screen in ("Logs", "Record"):
        tab.page.get_by_role("tab", name=screen).click()
        tab.sees("<b>bold</b>")
        assert tab.page.locator("main img, main b").filter(has_text="bold").count() == 0
        assert tab.page.locator("main img").count() == 0
    assert "owned" not in tab.page.title()
    past.end()


def test_what_a_backtest_promised_stands_beside_what_came_of_it(tab):
    tab.page.get_by_role("tab", name="Policies").click()
    row = tab.page.get_by_role("row", name=re.compile("^mover "))
    row.get_by_text("+2 [+1, +3] percentage points of goodput").wait_for()
    row.get_by_text("No proposals yet").wait_for()
    tab.sees("small-evaluation")


def test_where_the_time_went_is_on_the_first_screen(tab):
    account = tab.page.get_by_label("Goodput", exact=True)
    account.get_by_text("% useful steps").wait_for()
    account.get_by_text(re.compile(r"^Goodput \d+\.\d %$")).wait_for()


def test_a_worker_that_dies_is_marked_and_named_and_counted(tab, run):
    trainer = run.start_light("g7", "--step-s", "0.05")
    tab.waits(lambda: "g7-0" in [row["worker"] for row in ask(run, "status")["workers"]])
    tab.page.get_by_role("tab", name="Fleet").click()
    tab.page.get_by_label("Failed or unreachable").get_by_text("None.").wait_for()
    trainer.process.send_signal(signal.SIGKILL)
    tab.page.get_by_role("button", name="g7-0 failed").click()
    tab.page.get_by_role("heading", name="g7-0").wait_for()
    tab.page.get_by_label("Metrics of the worker").locator("canvas").wait_for()
    tab.page.get_by_label("Events of the worker").get_by_text("g7-0").first.wait_for()
    tab.page.get_by_label("Colour by").select_option("loss")
    tab.page.get_by_label("Highest and lowest").get_by_role("button").first.wait_for()


def test_the_page_says_when_it_is_stale_and_locks_what_acts(tab, run):
    drive(tab)
    tab.page.get_by_role("tab", name="Knobs").click()
    field = tab.page.get_by_label("new value of x")
    tab.waits(field.is_enabled)
    run.kill_weaver()
    tab.sees("no answer from the Weaver")
    tab.waits(field.is_disabled)
    run.start_weaver()
    tab.sees("data as of")
    tab.until("!document.getElementById('fresh').classList.contains('old')")
    drive(tab)
    tab.waits(field.is_enabled)
    leave(tab)


def killed(dashboard):
    """Kill a dashboard's process, and return which port another one has to take in its place."""
    dashboard.process.kill()
    dashboard.process.wait()
    return dashboard.links[-1].split(":")[2].partition("/")[0]


def test_a_browser_without_a_session_is_shown_how_to_log_in(dashboard, run, new_tab):
    tab = new_tab()
    tab.page.goto(dashboard.links[-1])
    tab.sees("data as of")
    (run.folder / "state" / "dashboard" / "cookie.key").unlink()
    again = Dashboard(run, 4, "--port", killed(dashboard))
    tab.sees("this browser has no access any more: open the link that the dashboard has printed")
    tab.page.get_by_role("button", name="stop all actions").click()
    tab.waits(lambda: "no access any more" in tab.message)
    tab.page.goto(again.links[-1])
    tab.sees("data as of")
    again.end()


def test_the_page_says_when_the_dashboard_is_gone_and_goes_on_when_it_is_back(run, new_tab):
    first = Dashboard(run, number=2)
    tab = new_tab()
    tab.page.goto(first.links[-1])
    tab.sees("data as of")
    port = killed(first)
    tab.sees("disconnected from the dashboard")
    tab.page.get_by_role("button", name="stop all actions").click()
    tab.sees('the dashboard does not answer: "torchloom actions stop" in a shell')
    second = Dashboard(run, 3, "--port", port)
    tab.until("!document.getElementById('fresh').classList.contains('old')")
    second.end()


def test_a_landscape_is_asked_for_and_drawn_as_it_is_found(tab, run):
    save_file(network().state_dict(), run.folder / NEWEST)
    lookout = run.start_landscape_trainer("v0")
    page = tab.page
    page.get_by_role("tab", name="Landscape").click()
    look = page.get_by_role("button", name="Compute", exact=True)
    assert look.is_disabled()
    drive(tab)
    tab.waits(lambda: "v0-0" in [row["worker"] for row in ask(run, "status")["workers"]])
    page.get_by_label("Points per side").fill("9")
    look.click()
    page.get_by_role("row", name="critical step").wait_for()
    page.get_by_text("81 of 81 points").wait_for()
    tab.until("document.querySelector('.chart canvas')?.width > 100")
    painted = page.evaluate(
        "() => { const c = document.querySelector('canvas.plane');"
        " return new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size }"
    )
    assert painted > 20
    loaded = "performance.getEntriesByType('resource').some((one) => one.name.includes('plotly'))"
    assert not page.evaluate(loaded)
    page.get_by_role("button", name="3-D").click()
    tab.until("document.querySelector('.surface canvas')?.width > 100")
    surface = page.locator(".surface")
    tab.waits(lambda: colours_of(surface.screenshot()) > 200)
    eye = "document.querySelector('.surface')._fullLayout.scene.camera.eye.x"
    before = page.evaluate(eye)
    surface.focus()
    page.keyboard.press("ArrowRight")
    tab.until(f"{eye} !== {before}")
    page.get_by_role("button", name="3-D").click()
    assert surface.is_hidden()
    page.get_by_text(re.compile(r"^landscape, requested at \d\d:\d\d:\d\d, .* ago: ")).wait_for()
    end = page.get_by_role("button", name="End")
    tab.waits(lambda: end.get_attribute("title") == "no landscape is under way")
    assert end.is_disabled()
    leave(tab)
    lookout.end()


def test_a_change_is_tried_out_beside_its_knob_and_both_curves_are_drawn(tab, run):
    Script().save(run.folder / REHEARSED)
    standby = run.start_preview_trainer("w0")
    page = tab.page
    page.get_by_role("tab", name="Knobs").click()
    row = page.get_by_role("row", name=re.compile("^x "))
    try_out = row.get_by_role("button", name="Preview")
    assert try_out.is_disabled()
    drive(tab)
    tab.waits(lambda: "w0-0" in [row["worker"] for row in ask(run, "status")["workers"]])
    what_if = page.get_by_role("region", name="Preview")
    what_if.get_by_text("takes one standby for at most").wait_for()
    what_if.get_by_label("Steps", exact=True).fill("40")
    row.get_by_label("new value of x").fill("100")
    try_out.click()
    what_if.get_by_role("cell", name=re.compile("^worse: the change moves the loss by")).wait_for()
    tab.waits(lambda: "preview x = 100: worse: the change moves the loss" in tab.message)
    what_if.get_by_role("cell", name=re.compile("^valid for 40")).wait_for()
    what_if.get_by_role("cell", name=re.compile("^x 1.0 -> 100")).wait_for()
    begun = re.compile(
        r"^preview x = 100, requested .*; from the weights of step 1, \d+ steps ago$"
    )
    what_if.get_by_text(begun).wait_for()
    tab.until("document.querySelector('[aria-label=\"Preview\"] canvas')?.width > 100")
    assert what_if.get_by_text("with the change").count()
    level = page.get_by_role("row", name=re.compile("^log_level "))
    assert level.get_by_role("button", name="Preview").is_disabled()
    (run.folder / REHEARSED).unlink()
    row.get_by_label("new value of x").fill("7")
    try_out.click()
    what_if.get_by_text("The newest one failed: preview x = 7").wait_for()
    what_if.get_by_text(re.compile("^preview x = 100, requested at ")).wait_for()
    tab.waits(lambda: "is undone: w0-0 failed: FileNotFoundError" in tab.message)
    end = what_if.get_by_role("button", name="End")
    tab.waits(lambda: end.get_attribute("title") == "no preview is under way")
    leave(tab)
    standby.end()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_by_day_and_by_night(dashboard, new_tab, scheme):
    tab = new_tab(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    tab.page.goto(dashboard.links[-1])
    tab.sees("data as of")
    for name in ("Run", "Fleet", "Knobs", "Record", "Logs", "Timeline", "Policies", "Landscape"):
        tab.page.get_by_role("tab", name=name).click()
        wide = tab.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, name
        assert tab.page.evaluate("document.querySelector('main').offsetTop") < 180
        assert tab.page.evaluate(
            "[...document.querySelectorAll('.knobs')].every((one) => one.scrollWidth <= 390)"
        )
    ground = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(243, 245, 247)") == (scheme == "light")
