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
    assert {name.split(".")[1] for name in loaded} == {"floor", "wire"}
    assert not loaded & {f"torchloom_core.wire.{name}" for name in ("events", "decisions", "plans")}


def test_operations_are_looked_up_when_it_attaches_and_load_nothing_heavy():
    attach = """
assert not any(name.startswith("torchloom_threadlet.capabilities") for name in sys.modules)
worker = torchloom_threadlet.attach()._worker
assert {"drain", "pause", "dump"} <= set(worker.operations.offered())
print"""
    loaded = modules(LIST.replace("\nprint", attach))
    assert loaded - set(sys.stdlib_module_names) <= ALLOWED
    assert "asyncio" not in loaded
