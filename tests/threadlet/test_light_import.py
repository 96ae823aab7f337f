import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

LIST = """
import sys
before = set(sys.modules)
import torchloom_threadlet
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""
ALLOWED = {"msgspec", "torchloom_core", "torchloom_threadlet", "typing_extensions"}


def modules(code):
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_attaching_imports_only_the_standard_library_and_msgspec():
    assert modules(LIST) - set(sys.stdlib_module_names) <= ALLOWED


def test_no_part_of_the_weaver_is_loaded():
    code = LIST.replace('name.split(".")[0]', "name")
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = {name for name in result.stdout.split() if name.startswith("torchloom_core.")}
    assert loaded == {
        f"torchloom_core.{name}"
        for name in (
            "floor",
            "floor.clock",
            "floor.errors",
            "floor.plain_text",
            "floor.suggest",
            "wire",
            "wire.actions",
            "wire.capabilities",
            "wire.codec",
            "wire.knobs",
            "wire.landscape",
            "wire.limits",
            "wire.links",
            "wire.messages",
            "wire.preview",
            "wire.standby_task",
            "wire.subjects",
            "wire.wording",
        )
    }
