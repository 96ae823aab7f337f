"""What a browser has to load before it shows anything is small, and none of it is of elsewhere."""

import gzip
import re

from torchloom_core.live.dashboard.app import PAGE

MOST_BYTES = 100_000
ON_REQUEST = {"plotly-gl3d.min.js"}


def test_all_of_the_page_is_less_than_100_kb_to_load():
    kinds = {".html", ".js", ".css"}
    paths = [path for path in PAGE.rglob("*") if path.suffix in kinds]
    paths = [path for path in paths if path.name not in ON_REQUEST]
    assert not any(name in (PAGE / "index.html").read_text() for name in ON_REQUEST)
    assert any(path.name == "dashboard.js" for path in paths)
    assert sum(len(gzip.compress(path.read_bytes())) for path in paths) < MOST_BYTES


def test_every_module_that_is_imported_is_there():
    for path in PAGE.glob("*.js"):
        for name in re.findall(r'from "\./(.*?)"', path.read_text()):
            assert (PAGE / name).is_file(), f"{path.name}: {name}"
