"""Commands, importers and capabilities of a package beside torchLoom."""

import sys

import pytest
from cyclopts import App

from tests.installing import install
from torchloom_core.cli import installed_commands
from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.trace import Bundle

PACKAGE = '''
from pathlib import Path

from cyclopts import App

from torchloom_core.lab.trace import BundleWriter

def rack(node: str, /) -> int:
    """Print the rack of a node."""
    print(f"rack of {node}")
    return 3

fabric = App(name="fabric", help="Show the fabric.", group="Act on the run")
LIMIT = 3

def import_quiet(source: Path, out: Path, *, days: int = 1, name: str = "", force: bool = False):
    """Import a fleet without faults."""
    with BundleWriter(
        out, name=name, start_ns=0, end_ns=days, source=source.name, licence="", synthetic=False
    ):
        pass

def import_nothing(source: Path, out: Path):
    pass
'''

COMMAND = '''
GROUP = "Observe and analyze"

def slow_down(worker: str, /) -> None:
    """Slow a worker down.

    Until it is resumed.
    """
    print(f"{worker} is slow")
'''


@pytest.fixture
def torchloom(tmp_path, monkeypatch):
    """Return a function that runs a command; only the package's own are there."""
    module = "foreign_commands"
    commands = {
        "rack": f"{module}:rack",
        "fabric": f"{module}:fabric",
        "limit": f"{module}:LIMIT",
        "gone": f"{module}_gone:rack",
        "status": f"{module}:rack",
    }
    importers = {"quiet": f"{module}:import_quiet", "nothing": f"{module}:import_nothing"}
    capabilities = dict.fromkeys(("slow_down", "speed_up"), "foreign_throttle")
    capabilities |= {"broken": "foreign_broken", "absent": "foreign_absent", "quiet": "tests"}
    groups = {
        "torchloom.capabilities": capabilities,
        "torchloom.commands": commands,
        "torchloom.importers": importers,
    }
    for package, text in (("throttle", COMMAND), ("broken", "def broken() -> 3 + '': pass")):
        (tmp_path / f"foreign_{package}").mkdir()
        (tmp_path / f"foreign_{package}" / "__init__.py").touch()
        (tmp_path / f"foreign_{package}" / "command.py").write_text(text)
    install(tmp_path, module, PACKAGE, groups)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    tree = App(name="torchloom")
    tree.command(lambda: None, name="status")
    trace, importers = App(name="trace"), App(name="import")
    trace.command(importers)
    tree.command(trace)
    monkeypatch.setattr(installed_commands, "app", tree)
    monkeypatch.setattr(installed_commands, "importers", importers)

    def run(*words):
        installed_commands.add_installed([*words])
        return tree(words, exit_on_error=False, print_error=False, result_action="return_value")

    return run


def test_a_command_of_a_package_runs_and_is_listed(torchloom, capsys):
    assert torchloom("rack", "n1") == 3
    assert capsys.readouterr() == ("rack of n1\n", "")
    torchloom("--help")
    out = capsys.readouterr().out
    for part in ("From other packages", "Print the rack", "Act on the run", "Show the fabric"):
        assert part in out


def test_a_package_that_cannot_be_used_costs_a_line_and_no_other_command(torchloom, capsys):
    torchloom("--help")
    of = "of package foreign_commands cannot be used"
    assert capsys.readouterr().err.splitlines() == [
        f"warning: capability absent {of}: need the package foreign_absent, was none",
        f"warning: capability speed_up {of}: "
        "need a function speed_up in foreign_throttle.command, was none",
        f"warning: command gone {of}: ModuleNotFoundError: No module named 'foreign_commands_gone'",
        f"warning: command limit {of}: need a function, was a int",
        f"warning: command status {of}: another command has this name",
    ]
    with pytest.raises(PluginError, match=f"^command limit {of}: need a function, was a int$"):
        torchloom("limit")


def test_a_capability_has_a_command_which_is_imported_when_it_is_used(torchloom, capsys):
    torchloom("--help")
    out = capsys.readouterr().out
    for part in ("Observe and analyze", "slow-down", "Slow a worker down.", "Drain replica groups"):
        assert part in out
    assert "foreign_throttle.command" not in sys.modules
    torchloom("slow-down", "g0-0")
    assert capsys.readouterr() == ("g0-0 is slow\n", "")


def test_a_capability_whose_command_raises_is_one_line(torchloom):
    line = "^capability broken of package foreign_commands cannot be used: TypeError: "
    with pytest.raises(PluginError, match=line):
        torchloom("broken")


def test_torchlooms_own_commands_load_no_package(torchloom, capsys):
    torchloom("status")
    assert capsys.readouterr() == ("", "")


def test_an_importer_of_a_package_is_a_command_with_its_options(torchloom, tmp_path, capsys):
    torchloom("trace", "import", "quiet", "here", "out.tltrace", "--days", "7", "--name", "mine")
    manifest = Bundle.open(tmp_path / "out.tltrace").manifest
    assert (manifest.name, manifest.source, manifest.end_ns) == ("mine", "here", 7)
    assert capsys.readouterr() == ("out.tltrace/events.jsonl: 0 rows\n", "")
    with pytest.raises(PluginError, match=r"need the parameters out, name and force, was source"):
        torchloom("trace", "import", "nothing", "here", "out.tltrace")
