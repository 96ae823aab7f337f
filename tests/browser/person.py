"""What tests of the page do on a person's behalf."""

from concurrent.futures import ThreadPoolExecutor


def apart(what):
    """Return ``what()``, called in another thread: in this one the browser's loop runs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(what).result()


def drive(tab, name="ann"):
    page = tab.page
    page.get_by_label("Your name").fill(name)
    page.get_by_role("button", name="take control").click()
    tab.sees("You are in control")


def leave(tab):
    tab.page.get_by_role("button", name="release control").click()
    tab.sees("control is free")
