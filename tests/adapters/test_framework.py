"""What all adapters of frameworks share: the check of the installed version, and the contract."""

from importlib import metadata

import pytest

from torchloom_threadlet.adapters import framework


def test_a_missing_or_old_framework_gives_one_line_that_says_what_to_install(monkeypatch):
    def version(distribution):
        if distribution == "old":
            return "2.4.9rc1+cpu"
        raise metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(framework.metadata, "version", version)
    with pytest.raises(ImportError) as missing:
        framework.require("lightning", "2.5", "lightning", "pytorch-lightning")
    with pytest.raises(ImportError) as old:
        framework.require("lightning", "2.5", "lightning", "old")
    framework.require("lightning", "2.4", "old")
    assert [str(error.value) for error in (missing, old)] == [
        "torchloom_threadlet.adapters.lightning: need lightning >= 2.5, which is not installed: "
        "pip install 'torchloom[lightning]'",
        "torchloom_threadlet.adapters.lightning: need old >= 2.5, was 2.4.9rc1+cpu: "
        "pip install 'torchloom[lightning]'",
    ]
