import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from torchloom_core.config.loading import convert, load, parse
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import ConfigError
from torchloom_core.wire.capabilities import installed

NO_ENVIRONMENT: dict[str, str] = {}


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_empty_file_is_the_defaults():
    assert parse("") == Config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n[weaver]\ntick = 1", ":3: weaver.tick: unknown key; did you mean tick_s?"),
        ("[wever]", ":1: wever: unknown key; did you mean weaver?"),
        ("[room]", ":1: room: this key is named 'dashboard' now"),
        (
            "[lighthouse]\nhost = '--help'",
            ":2: lighthouse.host: need a text matching [A-Za-z0-9:][A-Za-z0-9._:%-]*, was '--help'",
        ),
        ("[broker]\nhost = ''", ":2: broker.host: need a text matching"),
        (
            "[lighthouse]\njoin_timeout_s = 1e6",
            ":2: lighthouse.join_timeout_s: need a number >= 0.001 and <= 86400, was 1000000.0",
        ),
        ("[lighthouse]\norder = ['']", ":2: lighthouse.order[0]: need a text matching"),
        ("[weaver]\ntick_s = 'a'", ":2: weaver.tick_s: need a number > 0 and <= 1e+09, was 'a'"),
        (
            "[evaluate]\ntick_s = 1e-10",
            ":2: evaluate.tick_s: need a number >= 0.001 and <= 1e+09, was 1e-10",
        ),
        ("[weaver]\ntick_s = nan", ":2: weaver.tick_s: need a number > 0 and <= 1e+09, was nan"),
        ("[costs]\nrestart_s = inf", ":2: costs.restart_s: need a number >= 0 and <= 1e+09"),
        ("[arbiter]\ndry_run = 1", ":2: arbiter.dry_run: need true or false, was 1"),
        ("[arbiter]\nholdout = 1.5", ":2: arbiter.holdout: need a number >= 0 and <= 1, was 1.5"),
        (
            "[run]\nname = 'a.b'",
            ":2: run.name: need a text matching [A-Za-z0-9_-]{1,64}, was 'a.b'",
        ),
        ("arbiter = 3", ":1: arbiter: need a table, was 3"),
        ("policies.straggler = true", ":1: policies.straggler: need a table, was true"),
        ("[arbiter]\nforbidden = {}", ":2: arbiter.forbidden: need a list, was a table"),
    ],
)
def test_a_wrong_key_or_value_is_reported_with_line_key_and_rule(text, message):
    assert refusal(text).startswith(f"torchloom.toml{message}")


@pytest.mark.parametrize(
    "text",
    [
        "[arbiter.actions.migrate]\n\n# a comment\ncooldown = 1",
        "[arbiter.actions.drain]\n[arbiter.actions.migrate]\napproval = true\ncooldown = 1",
        "[arbiter.actions.drain]\ncooldown_s = 1\n\narbiter.cooldown = 1",
        "[run]\nname = '''\n\na'''",
        '[arbiter]\n\n\n"actions".migrate.cooldown = 1',
        '[broker]\ncreds = """\n[arbiter.actions.migrate]\ncooldown = 1"""\n'
        "[arbiter]\nactions = { migrate = { cooldown = 1 } }",
    ],
)
def test_the_line_is_the_one_that_sets_the_key(text):
    lines = text.splitlines()
    number = int(re.match(r"torchloom\.toml:(\d+): ", refusal(text))[1])
    assert re.search(r"cooldown = |name = ", lines[number - 1])
    assert all("cooldown = 1" not in line for line in lines[number:])


def test_a_fault_in_a_list_of_many_lines_is_found_at_its_first_line():
    text = "[arbiter]\nforbidden = [\n  { policy = 'a', action = 'drain' },\n  { policy = 'b' },\n]"
    assert refusal(text) == "torchloom.toml:2: arbiter.forbidden[1]: missing key 'action'"


def test_the_second_table_of_an_array_has_its_own_line():
    table = "[[arbiter.forbidden]]\npolicy = 'a'\naction = '{}'\n"
    assert refusal(table.format("drain") + table.format("dran")) == (
        "torchloom.toml:6: arbiter.forbidden[1].action: unknown action 'dran'; did you mean drain?"
    )


def test_an_unknown_mode_is_answered_with_the_known_ones():
    assert refusal("[policies.straggler]\nmode = 'on'") == (
        "torchloom.toml:2: policies.straggler.mode: need one of act, dry_run, shadow, was 'on'"
    )


def test_an_unknown_kind_of_action_is_refused_with_the_nearest():
    assert refusal("[arbiter.actions.migrat]") == (
        "torchloom.toml:1: arbiter.actions.migrat: unknown action 'migrat'; did you mean migrate?"
    )


@pytest.mark.parametrize("kind", installed())
def test_every_kind_of_action_can_have_rails(kind):
    assert kind in parse(f"[arbiter.actions.{kind}]\nlimit_per_hour = 1").arbiter.actions


def test_invalid_toml_is_reported_with_its_line():
    message = refusal("[run]\nname = 'a'\nname = 'b'")
    assert message.startswith("torchloom.toml:3: not valid TOML: ")


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "{b=" * 100_000,
        "policies.p." + ".".join("a" * 2000) + " = 1",
        "policies.p.a = " + "[" * 90 + "]" * 90,
        "[arbiter]\nseed = " + "9" * 5000,
        "[arbiter]\nseed = " + "9" * 30,
        "[policies.p]\nseed = -" + "9" * 30,
        "[policies.p]\nhigh = inf",
    ],
)
def test_a_failed_write_is_one_line(text):
    assert len(refusal(text)) < 300


class SetTo(msgspec.Struct, forbid_unknown_fields=True):
    knob: str


class Rule(msgspec.Struct, forbid_unknown_fields=True):
    metric: str
    low: float = 0.0
    high: float = 1.0
    action: Literal["alert", "drain"] | SetTo = "alert"
    most: Annotated[list[int], msgspec.Meta(max_length=1)] = []

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"need low <= high, was {self.low:g} > {self.high:g}")


class Options(msgspec.Struct, forbid_unknown_fields=True):
    rules: list[Rule] = []
    limit_s: float | None = None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric = 7", "2: policies.thresholds.rules[0].metric: need a text, was 7"),
        ("", "1: policies.thresholds.rules[0]: missing key 'metric'"),
        (
            "metric = 'x'\nlow = 2",
            "1: policies.thresholds.rules[0]: need low <= high, was 2 > 1",
        ),
        (
            "metric = 'x'\naction = 'dran'",
            "3: policies.thresholds.rules[0].action: "
            "need one of alert, drain or a table, was 'dran'",
        ),
        (
            "metric = 'x'\naction = { nob = 'lr' }",
            "3: policies.thresholds.rules[0].action.nob: unknown key; did you mean knob?",
        ),
        (
            "metric = 'x'\nmost = [1, 2]",
            "3: policies.thresholds.rules[0].most: expected `array` of length <= 1",
        ),
    ],
)
def test_a_plugins_own_options_are_checked_alike(text, message):
    text = "[[policies.thresholds.rules]]\n" + text
    options = tomllib.loads(text)["policies"]["thresholds"]
    with pytest.raises(ConfigError) as caught:
        convert(options, Options, "my.toml", "policies.thresholds", text)
    assert str(caught.value) == f"my.toml:{message}"


def test_an_option_may_be_absent_but_not_of_another_type():
    with pytest.raises(ConfigError, match=r"^my\.toml: policies\.x\.limit_s: need a number, was '"):
        convert({"limit_s": "a"}, Options, "my.toml", "policies.x")


def test_a_missing_file_that_was_named_is_an_error(tmp_path):
    path = tmp_path / "absent.toml"
    with pytest.raises(ConfigError, match=f"^{path}: cannot be read: No such file or directory$"):
        load(path, NO_ENVIRONMENT)


def test_without_a_file_at_the_default_path_there_are_the_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(None, NO_ENVIRONMENT) == Config()


def test_a_file_at_the_default_path_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torchloom.toml").write_text("[run]\nname = 'here'")
    assert load(None, NO_ENVIRONMENT).run.name == "here"


@pytest.mark.parametrize("make", ["folder", "not_utf8"])
def test_a_file_that_cannot_be_read_is_an_error_in_one_line(tmp_path, make):
    path = tmp_path / "torchloom.toml"
    if make == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"[run]\nname = '\xff'")
    with pytest.raises(ConfigError, match=r"^[^\n]*torchloom\.toml: cannot be read: [^\n]+$"):
        load(path, NO_ENVIRONMENT)


def test_the_environment_comes_before_the_file(tmp_path):
    path = tmp_path / "torchloom.toml"
    path.write_text("[broker]\nurl = 'nats://file:1'\ncreds = 'file.creds'")
    environment = {"NATS_URL": "nats://environment:2", "NATS_CREDS": "environment.creds"}
    broker = load(path, environment).broker
    assert (broker.url, broker.creds) == ("nats://environment:2", "environment.creds")
    assert load(path, NO_ENVIRONMENT).broker.url == "nats://file:1"


def test_a_quorum_may_not_need_more_groups_than_are_left_training():
    text = "[lighthouse]\nmin_replicas = 2\n"
    rule = r"torchloom.toml:2: lighthouse.min_replicas: need at most arbiter.min_groups, 1, was 2"
    with pytest.raises(ConfigError, match=rule):
        parse(text)
    parse(f"{text}[arbiter]\nmin_groups = 2\n")
    rule = r"torchloom.toml:3: .*, 0, was 1: raise min_groups, or remove \[lighthouse\] if the run"
    with pytest.raises(ConfigError, match=rule):
        parse("[arbiter]\nmin_groups = 0\n[lighthouse]\n")


def test_a_pipe_is_no_config(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path / "pipe.toml", Path("/dev/zero")):
        with pytest.raises(ConfigError, match=f"^{path}: cannot be read: Not a regular file$"):
            load(path)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[broker]\ncertificate = 'c'", "need both certificate and key, was 'c'"),
        ("[dashboard]\nkey = 'k'", "need both certificate and key, was 'k'"),
        ("[lighthouse]\nca = 'a'", "need certificate and key beside ca, was ca alone"),
        ("[broker]\nca = 'a'", "need certificate and key beside ca, or url, was ca alone"),
        (
            "[broker]\nurl = 'nats://n:1'\nca = 'a'",
            "url: with ca or certificate need tls://host:port, was nats://n:1",
        ),
        (
            "[broker]\naccounts = 'a'",
            "accounts: need url beside it, and neither creds nor worker_creds",
        ),
        (
            "[broker]\nport = 1\npeers = ['a:1', 'b:1']",
            "peers: need 3 or more hosts, as fewer survive no loss, was 2",
        ),
        (
            "[broker]\npeers = ['a:1', 'b:1', 'c:1']",
            "port: need this host's own in peers, was 0",
        ),
        (
            "[broker]\nport = 1\npeers = ['a:1', 'b:1', 'c:64000']",
            "peers: need ports up to 63535, was c:64000",
        ),
        (
            "[broker]\nurl = 'nats://n:1'\npeers = ['a:1', 'b:1', 'c:1']",
            "need either url or peers, were both",
        ),
    ],
)
def test_half_of_tls_or_of_a_cluster_is_refused(text, rule):
    table = text.partition("]")[0].lstrip("[")
    assert refusal(text) == f"torchloom.toml:1: {table}: {rule}"


def test_files_of_your_own_server_may_come_from_the_environment():
    own = {"NATS_URL": "tls://n:1", "NATS_CA": "a", "NATS_CERT": "c", "NATS_KEY": "k"}
    found = load(environment=own).broker
    assert (found.url, found.ca, found.certificate, found.key) == ("tls://n:1", "a", "c", "k")
    assert load(environment={"NATS_CA": "a"}).broker.ca == ""
    with pytest.raises(ConfigError, match=r"\[broker\] with NATS_CERT, NATS_URL: need both"):
        load(environment={"NATS_URL": "tls://n:1", "NATS_CERT": "c"})


def test_a_url_of_a_client_takes_the_place_of_the_cluster(tmp_path):
    path = tmp_path / "torchloom.toml"
    hosts = ", ".join(f"'10.0.0.{number}:4222'" for number in (1, 2, 3))
    path.write_text(f"[broker]\nhost = '10.0.0.1'\nport = 4222\npeers = [{hosts}]\n")
    own = {"NATS_URL": "nats://10.0.0.2:4222"}
    assert load(path, own, as_client=True).broker.url == own["NATS_URL"]
    with pytest.raises(ConfigError, match="need either url or peers, were both"):
        load(path, own)
