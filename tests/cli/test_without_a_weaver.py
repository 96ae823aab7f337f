import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchloom_core
from torchloom_core import cli

pytestmark = pytest.mark.integration


def is_one_line(result: subprocess.CompletedProcess[str], status: int, *parts: str) -> None:
    assert result.returncode == status, result
    assert result.stderr.startswith("torchloom: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def test_the_version_is_the_packages(folder):
    assert folder.torchloom("--version").stdout.strip() == torchloom_core.__version__


@pytest.mark.parametrize(
    ("words", "meant"),
    [("stauts", "status"), ("knob sett", "set"), ("status --jsn", "--json"), ("knob set lr", "")],
)
def test_a_typo_is_one_line_with_a_suggestion(folder, words, meant):
    is_one_line(folder.torchloom(*words.split()), 2, meant)


def test_an_invalid_duration_of_a_cordon_is_one_line_with_an_example(folder):
    message = "--for: need a duration such as 30s, 15min or 2d, at most 11574d, was '20000d'"
    is_one_line(folder.torchloom("cordon", "n7", "--for", "20000d"), 2, message)


@pytest.mark.long
@pytest.mark.parametrize("words", ["dashboard --report none", "dashboard --report none trajectory"])
def test_a_missing_report_is_one_line(folder, words):
    is_one_line(folder.torchloom(*words.split()), 12, "none: need a report.json: No such file")


def test_init_writes_a_valid_config_and_never_overwrites_one(folder):
    assert folder.torchloom("init").returncode == 0
    assert "[weaver]" in (folder.path / "torchloom.toml").read_text()
    plugins = json.loads(folder.torchloom("plugins", "--json").stdout)
    assert {"straggler", "trend"} <= {row["name"] for row in plugins if row["state"] == "active"}
    is_one_line(folder.torchloom("init"), 2, "torchloom.toml: exists already", "--force")
    assert folder.torchloom("init", "--force").returncode == 0


def test_plugins_are_listed_with_package_and_options(folder):
    result = folder.torchloom("plugins")
    assert result.returncode == 0
    assert "straggler" in result.stdout
    assert "ratio" in result.stdout
    assert f"torchloom {torchloom_core.__version__}" in result.stdout
    assert [line for line in result.stdout.splitlines() if line != line.rstrip()] == []


def test_an_error_in_the_config_is_one_line_with_file_and_line(folder):
    (folder.path / "torchloom.toml").write_text("[weaver]\ntick = 1\n")
    is_one_line(folder.torchloom("status"), 2, "torchloom.toml:2: weaver.tick: unknown key")


def test_without_a_weaver_the_error_shows_how_to_name_one(folder):
    is_one_line(folder.torchloom("status"), 3, "--url", "NATS_URL", "broker.json")


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_broker_that_cannot_be_reached_is_one_line(folder, how):
    url = "nats://127.0.0.1:1"
    if how == "option":
        result = folder.torchloom("status", "--url", url, NATS_URL="nats://127.0.0.1:2")
    else:
        result = folder.torchloom("status", NATS_URL=url)
    is_one_line(result, 3, f"{url}: no NATS server can be reached")


def test_missing_credentials_are_one_line(folder):
    result = folder.torchloom("status", "--url", "nats://127.0.0.1:1", "--creds", "my.creds")
    is_one_line(result, 3, "my.creds: credentials cannot be read")


def test_credentials_for_a_person_need_the_keys_of_a_weaver(folder):
    is_one_line(
        folder.torchloom("credentials", "create", "alice"),
        4,
        "broker/keys/keys.json: need the keys of a Weaver with the embedded broker, there are "
        "none; start `torchloom weaver` once",
    )
    assert not (folder.path / "alice.creds").exists()


@pytest.mark.parametrize(
    ("module", "extra", "words"),
    [
        ("cyclopts", "server", []),
        ("matplotlib", "evaluate", ["trace", "describe", "none.tltrace", "--plot", "p.png"]),
        ("jinja2", "evaluate", ["evaluate", "none.tltrace"]),
        ("sklearn", "predictors", ["evaluate", "none.tltrace", "--mode", "replay"]),
        ("ray", "ray", ["evaluate", "none.tltrace", "--backend", "ray"]),
        ("skops", "predictors", ["fit", "none.tltrace", "--predictor", "ewma", "--until", "1d"]),
    ],
)
def test_a_missing_extra_is_named_with_the_command_to_install_it(folder, module, extra, words):
    """Before the command reads its input."""
    hidden = f"import sys; sys.modules[{module!r}] = None; from torchloom_core.cli import main"
    result = subprocess.run(
        [sys.executable, "-c", f"{hidden}; main()", *words],
        cwd=folder.path,
        capture_output=True,
        text=True,
    )
    is_one_line(result, 1, f"{module} is not installed", f'pip install "torchloom[{extra}]"')


@pytest.mark.parametrize("words", ["--help", "knob st"])
def test_help_and_typos_do_not_import_slow_modules(folder, words):
    probe = (
        "import sys; from torchloom_core.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.stderr.write(' '.join({'nats', 'numpy', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe, *words.split()],
        cwd=folder.path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr.splitlines()[-1:] in ([], [result.stderr.strip()])
    assert not {"nats", "numpy", "pandas", "pyarrow"} & set(result.stderr.split())


def test_the_demo_removes_only_an_earlier_demo(folder, tmp_path):
    thesis = tmp_path / "thesis" / "chapter.tex"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    result = folder.torchloom("demo", "--out", str(thesis.parent))
    assert result.returncode == 4
    assert result.stderr == (
        f"torchloom: {thesis.parent}: need an empty folder or that of an earlier demo, "
        "found 'chapter.tex'\n"
    )
    assert thesis.read_text() == "years of work"


def test_unwritable_output_is_one_line():
    command = [Path(sys.executable).with_name("torchloom"), "plugins"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr == "torchloom: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 4, "cannot write the output: Disk"),
        (OSError(errno.EIO, "Input/output error"), 4, "cannot write the output: Input"),
        (OSError(errno.EFBIG, "File too large"), 4, "cannot write the output: File too large"),
        (OSError(errno.EIO, "Broken", "a\x1bb"), 4, "a\\x1bb: cannot be read or written: Broken"),
        (FileNotFoundError(errno.ENOENT, "No file", "t/m"), 4, "t/m: cannot be read or written: "),
        (PermissionError(errno.EACCES, "Denied", "t/m"), 4, "t/m: cannot be read or written: De"),
        (
            OSError(errno.EMFILE, "Too many open files"),
            4,
            "operating system error: Too many open",
        ),
        (MemoryError(), 9, "not enough memory\n"),
        (MemoryError("Unable to allocate 9 TiB"), 9, "not enough memory: Unable to allocate 9 T"),
    ],
)
def test_an_operating_system_error_is_one_line(error, status, line, monkeypatch, capfd):
    def refused(arguments):
        raise error

    monkeypatch.setattr(cli, "_run", refused)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capfd.readouterr().err
    assert ended.value.code == status
    assert printed.startswith(f"torchloom: {line}")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(104, "reset"), KeyError()])
def test_a_bug_keeps_its_traceback(error, monkeypatch):
    def broken(arguments):
        raise error

    monkeypatch.setattr(cli, "_run", broken)
    with pytest.raises(type(error)):
        cli.main()


def broken_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_an_error_with_a_closed_stderr_still_fails():
    command = [Path(sys.executable).with_name("torchloom"), "fit", "nowhere.tltrace"]
    assert subprocess.run(command, stderr=broken_pipe(), check=False).returncode not in (0, 1)


def test_a_reader_that_closes_stdout_is_no_error():
    command = [Path(sys.executable).with_name("torchloom"), "plugins"]
    assert subprocess.run(command, stdout=broken_pipe(), check=False).returncode == 0


@pytest.mark.long
def test_closed_standard_streams_are_no_error(tmp_path):
    torchloom, trace = Path(sys.executable).with_name("torchloom"), tmp_path / "s.tltrace"
    command = f"{torchloom} plugins >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    command = f"{torchloom} trace synthesize {trace} --nodes 4 --days 2 <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, check=False).returncode == 0
    assert trace.is_dir()
    assert (
        subprocess.run(f"{torchloom} fit x <&- >&- 2>&-", shell=True, check=False).returncode == 2
    )


@pytest.mark.parametrize(
    ("word", "status", "output"),
    [("größer".encode(), 0, "größer"), (b"gr\xf6sser", 2, "need arguments in UTF-8, was gr")],
)
def test_an_argument_is_read_as_utf_8_in_any_locale(word, status, output):
    program = "import sys; from torchloom_core import cli; cli._run = lambda words: print(words)"
    plain = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", f"{program}; cli.main()", word]
    done = subprocess.run(command, env={**plain, "PYTHONIOENCODING": "utf-8"}, capture_output=True)
    assert done.returncode == status
    assert output in (done.stdout + done.stderr).decode()
