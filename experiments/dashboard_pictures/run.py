"""Take the pictures of the dashboard that the documents show, of a real run in a real browser.

``python experiments/dashboard_pictures/run.py`` plays ``torchloom demo --dashboard`` for some two
minutes.
"""

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).parents[2] / "docs"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--enable-unsafe-swiftshader",  # WebGL without a GPU
    "--disable-background-networking",
    "--disable-sync",
]
START_S = 90.0
WARM_S = 30.0
LANDS_S = 14.0
"""Until a change has landed, and its guard has judged it."""

LOOKS_S = 8.0
PATIENCE_MS = 90_000.0


def link_of(demo: "subprocess.Popen[str]") -> str:
    """Return the link that the demo prints."""
    assert demo.stdout is not None
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        found = re.search(r"https?://\S+token=\S+", demo.stdout.readline())
        if found:
            return found[0]
    sys.exit("the demo printed no link")


def shoot(page: Page, name: str) -> None:
    """Take one picture, once charts and map are painted."""
    page.wait_for_timeout(1500)
    page.screenshot(path=DOCS / f"dashboard-{name}.png", full_page=False)


def play(page: Page, link: str) -> None:
    """Operate the page as the manual describes, and take a picture of each screen."""
    page.goto(link)
    page.get_by_label("you are").fill("ann")
    page.get_by_role("button", name="take control").click()
    page.get_by_text("You are in control").wait_for()
    page.wait_for_timeout(WARM_S * 1000)
    page.get_by_role("tab", name="Knobs").click()
    page.get_by_label("new value of lr", exact=True).fill("0.1")
    page.keyboard.press("Enter")
    page.wait_for_timeout(LANDS_S * 1000)
    shoot(page, "knobs")
    page.get_by_role("button", name="checkpoint now").click()
    page.get_by_label("new value of lr", exact=True).fill("2")
    page.get_by_role("row", name=re.compile("^lr ")).get_by_role("button", name="preview").click()
    tried_out = page.get_by_role("region", name="What if")
    tried_out.get_by_role("cell", name=re.compile("the change moves the loss by")).wait_for(
        timeout=PATIENCE_MS
    )
    page.wait_for_timeout(LOOKS_S * 1000)
    tried_out.scroll_into_view_if_needed()
    shoot(page, "preview")
    page.get_by_role("tab", name="Landscape").click()
    page.get_by_role("button", name="look", exact=True).click()
    page.get_by_role("img", name=re.compile("loss from")).wait_for(timeout=PATIENCE_MS)
    page.wait_for_timeout(LOOKS_S * 1000)
    shoot(page, "landscape")
    page.get_by_role("button", name="in 3-D").click()
    page.locator(".surface canvas").first.wait_for()
    page.wait_for_timeout(LOOKS_S * 1000)
    page.locator(".surface").scroll_into_view_if_needed()
    shoot(page, "surface")
    page.get_by_role("button", name="in 3-D").click()
    for name in ("Record", "Logs", "Timeline", "Policies", "Run"):
        page.get_by_role("tab", name=name).click()
        shoot(page, name.lower())
    page.get_by_role("tab", name="Fleet").click()
    page.get_by_label("painted by").select_option("step_time_s")
    page.locator("canvas.heat").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    shoot(page, "fleet")


def main() -> None:
    """Start the demo, take the pictures, and end it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dark", action="store_true", help="as the page is by night")
    options = parser.parse_args()
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        sys.exit("need chromium: apt install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        demo = subprocess.Popen(
            [sys.executable, "-u", "-m", "torchloom_core.cli", "demo", "--dashboard"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            link = link_of(demo)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
                page = browser.new_page(
                    viewport={"width": 1280, "height": 860},
                    color_scheme="dark" if options.dark else "light",
                )
                play(page, link)
                browser.close()
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(60)


if __name__ == "__main__":
    main()
