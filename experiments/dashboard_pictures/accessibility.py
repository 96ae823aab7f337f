"""Check every screen of a dashboard with axe-core, in both themes and on a phone.

``python experiments/dashboard_pictures/accessibility.py AXE LINK``: ``AXE`` is ``axe.min.js`` of
the npm package axe-core, ``LINK`` what ``torchloom demo --dashboard`` prints. The exit status is 1
if a fault is serious or critical.
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
SCREENS = ("Run", "Fleet", "Knobs", "Record", "Logs", "Timeline", "Policies", "Landscape")
SIZES = ((1440, 900), (390, 844))


def faults(page: Page, axe: str) -> list[tuple[str, str, str]]:
    """Return screen, impact and rule of each fault."""
    found = []
    for screen in SCREENS:
        page.get_by_role("tab", name=screen).click()
        page.wait_for_timeout(1500)
        page.evaluate(axe)
        found += [
            (screen, str(fault["impact"]), f"{fault['id']}: {fault['help']}")
            for fault in page.evaluate("axe.run()")["violations"]
        ]
    return found


def main() -> None:
    """Print the faults."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("axe", type=Path)
    parser.add_argument("link")
    options = parser.parse_args()
    axe, path = options.axe.read_text(encoding="utf-8"), shutil.which("chromium")
    state, worst = None, 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for width, height in SIZES:
            for theme in ("light", "dark"):
                context = browser.new_context(
                    bypass_csp=True,  # axe is evaluated in the page
                    color_scheme=theme,
                    viewport={"width": width, "height": height},
                    has_touch=width < height,
                    storage_state=state,
                )
                page = context.new_page()
                page.goto(options.link if state is None else options.link.partition("?")[0])
                page.get_by_text("data as of").wait_for(state="attached")
                state = context.storage_state()
                found = faults(page, axe)
                worst |= any(impact in ("serious", "critical") for _, impact, _ in found)
                print(f"{width}x{height} {theme}: {len(found)} faults on {len(SCREENS)} screens")
                for screen, impact, text in found:
                    print(f"  {screen} {impact} {text}")
        browser.close()
    sys.exit(int(worst))


if __name__ == "__main__":
    main()
