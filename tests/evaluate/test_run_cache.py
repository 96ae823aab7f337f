import importlib
import importlib.metadata
from types import SimpleNamespace

from torchloom_core.lab.evaluate import run_cache


def digest() -> str:
    run_cache.code_digest.cache_clear()
    return run_cache.code_digest()


def plugin(tmp_path, monkeypatch):
    package = tmp_path / "a_plugins_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tables.py").write_text("LIMIT = 1\n")
    (package / "policy.py").write_text("class Mine:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    cls = importlib.import_module("a_plugins_package.policy").Mine
    info = SimpleNamespace(cls=cls, package="not-installed")
    monkeypatch.setattr(run_cache, "installed", lambda: (info,))
    return package


def test_a_second_module_of_a_plugin_changes_the_digest(tmp_path, monkeypatch):
    package = plugin(tmp_path, monkeypatch)
    before = digest()
    assert digest() == before
    (package / "tables.py").write_text("LIMIT = 2\n")
    after = digest()
    run_cache.code_digest.cache_clear()
    assert after != before


def test_another_version_of_what_a_plugin_requires_changes_the_digest(tmp_path, monkeypatch):
    plugin(tmp_path, monkeypatch)
    before = digest()
    real = importlib.metadata.version
    for name in ("numpy", "scikit-learn", "pluggy", "torchloom"):
        with monkeypatch.context() as other:
            other.setattr(
                importlib.metadata, "version", lambda of, n=name: "0.0.1" if of == n else real(of)
            )
            assert digest() != before, name
    run_cache.code_digest.cache_clear()
