"""Take the pictures of the dashboard that the documents show, of a real run in a real browser.

``python experiments/dashboard_pictures/run.py`` plays the run of ``scenario.py`` for some four
minutes: a node becomes slow, a policy proposes to migrate its group, a person approves it. Each of
ten screens is taken in both themes, at 1440x900 and 390x844.
"""

import argparse
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--enable-unsafe-swiftshader",  # WebGL without a GPU
    "--disable-background-networking",
    "--disable-sync",
]
VIEWS: dict[str, Any] = {
    "": {"viewport": {"width": 1440, "height": 900}},
    "-phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}
THEMES: dict[str, Literal["light", "dark"]] = {"": "light", "-dark": "dark"}
COLOURS = 128
MOST_BYTES = 60_000
START_S = 120.0
WARM_S = 25.0
SETTLES_S = 14.0
"""Until a change is applied and its guard has judged it."""

PATIENCE_MS = 150_000.0


class Camera:
    """Pages in both themes and sizes; the first one acts, all of them are photographed."""

    def __init__(self, browser: Browser, link: str) -> None:
        first = browser.new_context(color_scheme="light", **VIEWS[""])
        self.page = first.new_page()
        self.page.goto(link)
        self.pages = {"": self.page}
        state = first.storage_state()
        for view, options in VIEWS.items():
            for theme, scheme in THEMES.items():
                if view or theme:
                    context = browser.new_context(
                        color_scheme=scheme, storage_state=state, **options
                    )
                    page = context.new_page()
                    page.goto(link.partition("?")[0])
                    self.pages[theme + view] = page

    def take(self, name: str, screen: str, show: str = "") -> None:
        """Take a screen in all themes and sizes, ``show`` scrolled into view."""
        for variant, page in self.pages.items():
            page.evaluate("window.scrollTo(0, 0)")
            page.get_by_role("tab", name=screen).click()
            page.wait_for_timeout(1200)
            self.prepare(name, page)
            if show:
                page.locator(show).first.evaluate(
                    "(one) => window.scrollTo(0, one.getBoundingClientRect().top + scrollY - 60)"
                )
                page.wait_for_timeout(300)
            save(page.screenshot(), DOCS / f"dashboard-{name}{variant}.png")

    def prepare(self, name: str, page: Page) -> None:
        """Bring one screen into the state that its picture shows."""
        if name == "fleet":
            page.get_by_label("Colour by").select_option("compute_s")
            page.get_by_role("button", name="g1-0 slow").click()
            page.wait_for_timeout(4000)
            page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
        elif name == "timeline":
            marks = page.get_by_role("group", name="outcomes").get_by_role("button")
            if marks.count():
                marks.last.click(force=True)
                page.wait_for_timeout(500)
        elif name == "surface":
            toggle = page.get_by_role("button", name="3-D")
            if toggle.get_attribute("aria-pressed") == "false":
                toggle.click()
                page.locator(".surface canvas").first.wait_for()
                page.wait_for_timeout(4000)


def save(data: bytes, path: Path) -> None:
    """Write a picture with a palette, with fewer colours while it is too large."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    colours = COLOURS
    while True:
        out = io.BytesIO()
        picture.quantize(colours, Image.Quantize.MAXCOVERAGE).save(out, "PNG", optimize=True)
        if len(out.getvalue()) <= MOST_BYTES or colours <= 16:
            break
        colours //= 2
    path.write_bytes(out.getvalue())


def take_control(page: Page) -> None:
    """Take control, and save a checkpoint for the standby to work with."""
    page.get_by_label("Your name").fill("ann")
    page.get_by_role("button", name="Take control").click()
    page.get_by_text("You are in control").wait_for()
    page.wait_for_timeout(WARM_S * 1000)
    page.get_by_role("tab", name="Knobs").click()
    page.get_by_role("button", name="Checkpoint now").click()
    page.wait_for_timeout(3000)


def play(camera: Camera, folder: Path) -> None:
    """Let a node become slow, approve the migration, and take a picture of each screen."""
    page = camera.page
    page.get_by_role("tab", name="Knobs").click()
    page.get_by_label("new value of lr", exact=True).fill("0.04")
    page.keyboard.press("Enter")
    page.wait_for_timeout(SETTLES_S * 1000)
    (folder / "slow").touch()
    page.get_by_role("tab", name="Run").click()
    page.get_by_text(re.compile("1 slow rank: g1-0")).first.wait_for(timeout=PATIENCE_MS)
    page.wait_for_timeout(6000)
    page.get_by_role("button", name=re.compile("^Approve")).wait_for(timeout=PATIENCE_MS)
    camera.take("run", "Run")
    camera.take("fleet", "Fleet")
    page.get_by_role("tab", name="Run").click()
    page.get_by_role("button", name=re.compile("^Approve")).click()
    page.get_by_text(re.compile("g3-0 joined, then g1 drained")).first.wait_for(timeout=PATIENCE_MS)
    page.wait_for_timeout(SETTLES_S * 1000)
    camera.take("record", "Record")
    camera.take("timeline", "Timeline")
    camera.take("policies", "Policies")
    camera.take("logs", "Logs")
    camera.take("knobs", "Knobs")


def try_out(camera: Camera) -> None:
    """Preview a knob change and compute a landscape: a standby is free for both."""
    page = camera.page
    page.get_by_role("tab", name="Knobs").click()
    page.get_by_label("new value of lr", exact=True).fill("2")
    page.get_by_role("row", name=re.compile("^lr ")).get_by_role("button", name="Preview").click()
    page.get_by_role("row", name=re.compile("^verdict (better|worse|no )")).wait_for(
        timeout=PATIENCE_MS
    )
    page.wait_for_timeout(3000)
    camera.take("preview", "Knobs", "[aria-label='Preview']")
    page.get_by_role("tab", name="Landscape").click()
    page.get_by_label("At most (s)").last.fill("20")
    page.get_by_role("button", name="Compute", exact=True).click()
    page.get_by_role("row", name="critical step").wait_for(timeout=PATIENCE_MS)
    page.wait_for_timeout(24_000)
    camera.take("landscape", "Landscape")
    camera.take("surface", "Landscape", "[aria-label='In a plane']")


def link_of(demo: "subprocess.Popen[str]") -> str:
    """Return the link that the run prints."""
    assert demo.stdout is not None
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        found = re.search(r"https?://\S+token=\S+", demo.stdout.readline())
        if found:
            return found[0]
    sys.exit("the run printed no link")


def main() -> None:
    """Start the run, take the pictures, and end it."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        sys.exit("need chromium: apt install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        demo = subprocess.Popen(
            [sys.executable, "-u", "-m", "experiments.dashboard_pictures.scenario", folder],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            link = link_of(demo)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
                camera = Camera(browser, link)
                take_control(camera.page)
                try_out(camera)
                play(camera, Path(folder))
                browser.close()
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(60)


if __name__ == "__main__":
    main()
