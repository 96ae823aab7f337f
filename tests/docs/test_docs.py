import asyncio
import importlib
import inspect
import re
import shlex
import subprocess
import sys
import tomllib
import types
import zipfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from unittest.mock import AsyncMock

import pytest
from cyclopts import CycloptsError
from cyclopts.exceptions import MissingArgumentError

from tests.docs.attached import NAMES, attached
from tests.docs.pages import PAGES, ROOT, blocks, headings, manual, prose, spans
from torchloom_core import testing
from torchloom_core.cli.app import app
from torchloom_core.config.loading import parse
from torchloom_core.config.monitoring import Metrics, Tracing
from torchloom_core.config.schema import ActionRule, Arbiter, Breaker, Config
from torchloom_core.config.services import Lighthouse
from torchloom_core.floor import errors
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import ENTRY_POINT_GROUP, discover
from torchloom_core.live.kernel.arbiter.limits import PERSON_LIMITS, POLICY_LIMITS
from torchloom_core.live.trajectory.summaries import RECORD_KINDS
from torchloom_core.live.weaver.operator_service import OperatorService
from torchloom_core.wire import subjects
from torchloom_core.wire.access import Access
from torchloom_core.wire.decisions import Reply
from torchloom_core.wire.operator import Answer

PACKAGES = ("torchloom_core", "threadlet", "policies", "predictors")
FILE_SUFFIXES = ("json", "creds")
CONTRACTS = tuple(value for name, value in vars(testing).items() if name.endswith("Contract"))
ENDINGS = ("net_gain", "person", "outbid", "approval", "lapsed", "holdout", "dry_run", "shadow")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def doc(name):
    return next(page for page in PAGES if page.name == name)


# --- code blocks ---


def run(block, module):
    """Run the block as part of ``module``, and the tests that it defines."""
    before = dict(vars(module))
    # Line numbers in a traceback are the page's.
    exec(compile("\n" * block.line + block.text, block.page, "exec"), vars(module))
    for name, value in list(vars(module).items()):
        if before.get(name) is value:
            continue
        if inspect.isclass(value) and issubclass(value, CONTRACTS) and value not in CONTRACTS:
            for test in filter(lambda name: name.startswith("test_"), dir(value)):
                getattr(value(), test)()
        elif name.startswith("test_"):
            value()


# What docs/predictor.md fits takes 20 s.
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name == "predictor.md" else [])
        for page in PAGES
    ],
    ids=lambda page: page.name,
)
def test_every_python_block_runs(page, folder, monkeypatch):
    module = None
    for number, block in enumerate(blocks(page, "python")):
        if block.note.startswith("not run: "):
            continue
        if block.source:
            assert block.text == (ROOT / block.source).read_text(encoding="utf-8"), block.place
            continue
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
            importlib.import_module(block.file.removesuffix(".py"))
            continue
        if block.note != "continues":
            module = types.ModuleType(f"{page.stem}_{number}")
            monkeypatch.setitem(sys.modules, module.__name__, module)
        assert module, f"{block.place}: need a block before the one that continues"
        run(block, module)


@pages
def test_every_toml_block_is_a_valid_config_or_package(page, folder):
    for block in blocks(page, "python"):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
    found = []
    for block in blocks(page, "toml"):
        table = tomllib.loads(block.text)
        if "project" in table:
            named = table["project"]["entry-points"].get(ENTRY_POINT_GROUP, {})
            found += discover(EntryPoint(*named_, ENTRY_POINT_GROUP) for named_ in named.items())
            assert not [info.problem for info in found if info.problem]
            continue
        config = parse(block.text, block.place)
        named = {*config.policies, *config.predictors, *config.effectors}
        named.update(name for role in config.roles.values() for name in role.policies)
        if named:
            active = activate(config, [*discover(), *found], block.place, with_effectors=True)
            assert not active.failed
            assert active.versions.keys() == named


@pytest.mark.integration
def test_the_package_of_the_manual_contains_its_module_under_any_project_name(tmp_path):
    page = ROOT / "docs" / "policy.md"
    for block in filter(lambda block: block.file, blocks(page, "toml", "python")):
        text = block.text.replace('name = "torchloom-cool-down"', 'name = "not-too-hot"')
        (tmp_path / block.file).write_text(text, encoding="utf-8")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    [wheel] = (tmp_path / "dist").glob("not_too_hot-*.whl")
    assert "torchloom_cool_down.py" in zipfile.ZipFile(wheel).namelist()


def shell_lines(page):
    """Yield ``(place, words)`` of every command in a shell block."""
    for block in blocks(page, "sh", "console"):
        for line in block.text.splitlines():
            if block.language == "console":
                if not line.startswith("$ "):
                    continue
                line = line[2:]
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words.pop(0)
            if words:
                yield block.place, words


def check_torchloom(words, place):
    """Fail unless the command line has a valid command and valid options."""
    try:
        app.parse_args(words[1:], exit_on_error=False, print_error=False)
    except MissingArgumentError:
        pass  # text may name a command without its arguments
    except CycloptsError as error:
        raise AssertionError(f"{place}: {shlex.join(words)}: {error}") from None


@pages
def test_every_command_line_is_valid(page):
    targets = re.findall(r"(?m)^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
    for place, words in shell_lines(page):
        if words[0] == "torchloom":
            check_torchloom(words, place)
        elif words[0] == "make":
            assert set(words[1:]) <= set(targets), place
    for span in spans(page):
        if span.startswith("torchloom "):
            check_torchloom(span.replace("<id>", "p1.1").split(), page.name)
        elif span.startswith("make "):
            assert span.removeprefix("make ") in targets, span


# --- completeness ---


def operator_service():
    """Return an operator service whose kernel accepts every request."""

    def accept(request):
        service.reply(Reply(request=request.id, ok=True, text=""))

    service = OperatorService(1, accept, *2 * [lambda after: Answer(ok=True, text=after)])
    service.access = types.SimpleNamespace(listed=Access, revoke=AsyncMock(return_value="revoked"))
    return service


def test_every_control_verb_is_shown_with_a_valid_request():
    verbs = operator_service().verbs
    shown = re.findall(r"nats (?:req|pub) tl\.ctl\.run\.operator\.(\S+) '(.*?)'", manual())
    assert {verb for verb, _ in shown} == set(verbs)
    for verb, body in shown:
        if body:
            assert b'"ok":true' in asyncio.run(verbs[verb](body.encode(), "alice"))


def test_every_subject_is_documented():
    functions = inspect.getmembers(subjects, inspect.isfunction)
    names = [
        function(**{name: f"<{name}>" for name in inspect.signature(function).parameters})
        for name, function in functions
        if not name.startswith(("_", "token", "is_name", "as_name", "person_and_verb"))
    ]
    assert len(names) > 10
    assert [name for name in names if name not in doc("weaver.md").read_text()] == []


def test_every_safety_limit_is_documented_in_order_with_an_example():
    text = doc("arbiter.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| \d+ \| `(\w+)` \|.*\| (yes)? ?\|$", text)
    assert rows == [(r.__name__, "yes" if r in PERSON_LIMITS else "") for r in POLICY_LIMITS]
    assert re.findall(r"denied by (\w+):", text) == [limit.__name__ for limit in POLICY_LIMITS]
    assert [rule for rule in ENDINGS if f"| `{rule}` |" not in text] == []


def test_every_setting_of_the_arbiter_is_documented():
    text = doc("arbiter.md").read_text(encoding="utf-8")
    fields = [name for cls in (Arbiter, ActionRule, Breaker) for name in cls.__struct_fields__]
    assert [name for name in fields if name not in text] == []


def test_every_kind_of_record_is_documented():
    assert RECORD_KINDS - set(spans(doc("trajectory.md"))) == set()


def test_every_environment_variable_is_documented():
    read = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if "demos" not in path.relative_to(ROOT).parts:
                source = path.read_text(encoding="utf-8")
                read |= set(re.findall(r"\bTORCHLOOM_[A-Z_]+", source))
                read |= set(re.findall(r"environ(?:ment)?\.get\(\s*\"([A-Z_]+)\"", source))
    assert {"TORCHLOOM_JOIN", "NATS_URL", "REPLICA_GROUP_ID"} <= read
    documented = {span for page in PAGES for span in spans(page)}
    assert read - documented - {"PATH"} == set()


def commands(of=app, name="torchloom") -> Iterator[str]:
    """Yield every command without subcommands."""
    parts = [part for part in of if not part.startswith("-")]
    for part in parts:
        yield from commands(of[part], f"{name} {part}")
    if not parts:
        yield name


def test_every_command_is_documented():
    text = manual()
    assert [command for command in commands() if command not in text] == []


def test_every_built_in_plugin_is_documented():
    with (ROOT / "pyproject.toml").open("rb") as file:
        names = tomllib.load(file)["project"]["entry-points"][ENTRY_POINT_GROUP]
    documented = {*spans(doc("policy.md")), *spans(doc("predictor.md"))}
    assert names.keys() <= documented


def test_every_exit_status_is_documented():
    documented = set(re.findall(r"(?m)^\| (\d+) \|", doc("weaver.md").read_text(encoding="utf-8")))
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    assert {str(cls.exit_code) for cls in classes} <= documented


@pages
def test_every_key_of_the_config_exists(page):
    for span in spans(page):
        first, *rest = span.split(".")
        if first not in Config.__struct_fields__ or not rest or rest[-1] in FILE_SUFFIXES:
            continue
        where = getattr(
            Config(lighthouse=Lighthouse(), metrics=Metrics(), tracing=Tracing()), first
        )
        for name in rest:
            if where == {}:  # arbiter.actions.<kind>
                where = ActionRule()
                continue
            assert hasattr(where, name), f"{page.name}: {span}"
            where = getattr(where, name)


# --- links and names ---


@pages
def test_every_link_and_every_named_file_exists(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not target.startswith("http"):
            path, _, anchor = target.partition("#")
            linked = page.parent / path if path else page
            assert linked.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in headings(linked), f"{page.name}: {target}"
    for span in spans(page):
        if re.fullmatch(r"\w[\w.-]*/[\w./-]*", span) and (ROOT / span.split("/")[0]).exists():
            assert (ROOT / span).exists(), f"{page.name}: {span}"


def test_the_manual_lists_all_of_its_pages():
    index = doc_index().read_text(encoding="utf-8")
    listed = {page: page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}
    missing = [path for path in listed.values() if f"({path})" not in index]
    assert missing == [doc_index().name]


def doc_index():
    return ROOT / "docs" / "index.md"


@pytest.mark.parametrize("name", NAMES)
def test_attaching_a_script_takes_few_lines(name):
    script, added = attached(name)
    compile(script, name, "exec")
    assert len(added) <= 7


def test_every_file_in_the_architecture_page_exists():
    text = doc("architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?|ipc\.py)`", text))
    homes = (ROOT, ROOT / "torchloom_core", ROOT / "threadlet" / "torchloom_threadlet")
    assert len(named) > 60
    assert [name for name in named if not any((home / name).exists() for home in homes)] == []
