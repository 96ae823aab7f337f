"""The permissions in the JWTs of the embedded broker, as its server reads them."""

import base64
import json
import os
import re
import stat
import time
from typing import Any

import msgspec
import nkeys
import pytest

from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import private_folder, write_private
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.live.transport.security.credentials import Credentials, Keys

PUBLISHED_BY_WORKERS = [
    *("tl.telemetry.run.{name}.{life}", "tl.evt.run.{name}.{life}"),
    *("tl.bulk.run.{name}.{life}", "tl.ack.run.{name}.{life}"),
]
READ_BY_PEOPLE = [
    *("$SRV.PING", "$SRV.PING.>", "$SRV.INFO", "$SRV.INFO.>", "$SRV.STATS", "$SRV.STATS.>"),
    "$JS.API.DIRECT.GET.KV_TL_run.>",
]
BUCKET = "$JS.API.STREAM.INFO.KV_TL_run"


@pytest.fixture
def credentials(tmp_path):
    return Credentials.ensure(tmp_path, "run")


@pytest.fixture
def keys(credentials, tmp_path):
    return msgspec.json.decode(keys_file(tmp_path).read_bytes(), type=Keys)


def keys_file(state):
    return state / "broker" / "keys" / "keys.json"


def filled(name, life, *templates):
    return [s.replace("{name}", name).replace("{life}", life) for group in templates for s in group]


def own(*templates):
    return filled("{{name()}}", "{{tag(life)}}", *templates)


def permitted(publish, subscribe, subscriptions=-1):
    limits = {"subs": subscriptions, "data": -1, "payload": -1}
    return {"pub": {"allow": publish}, "sub": {"allow": subscribe}, **limits}


def names(keys):
    """Return the field of each seed by its public key."""
    fields = msgspec.structs.asdict(keys)
    return {nats_jwt.public_key(seed): name for name, seed in fields.items() if name != "made_s"}


def claims_in(jwt: str, keys: Keys) -> dict[str, Any]:
    """Return a JWT's claims, with names in place of keys, after checking its signature."""
    signed, _, signature = jwt.rpartition(".")
    body = json.loads(decoded(signed.partition(".")[2]))
    issuer = names(keys)[body["iss"]]
    assert nkeys.from_seed(getattr(keys, issuer).encode()).verify(
        signed.encode(), decoded(signature)
    )
    assert body["iat"] == keys.made_s
    named = json.dumps(body)
    for key, name in names(keys).items():
        named = named.replace(key, name)
    return json.loads(named)


def decoded(part):
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def user(creds, keys):
    """Return name, issuer and permissions of a credentials file."""
    jwt, seed = re.findall(r"^[\w.-]{40,}$", creds, re.MULTILINE)
    claims = claims_in(jwt, keys)
    assert claims["sub"] == names(keys).get(nats_jwt.public_key(seed), nats_jwt.public_key(seed))
    rest = {k: v for k, v in claims["nats"].items() if k not in {"type", "version"}}
    return claims["name"], claims["iss"], rest


def trusted(credentials, keys):
    """Return the claims of each account, by the name of its key."""
    text = credentials.server_config()
    preload = re.search(r"^resolver_preload \{\n(.*)^\}\n\Z", text, re.DOTALL | re.MULTILINE)
    pairs = re.findall(r"^  (\w+): (\S+)$", preload[1], re.MULTILINE)
    assert len(pairs) == preload[1].count("\n")
    accounts = {}
    for key, jwt in pairs:
        claims = claims_in(jwt, keys)
        assert (claims["name"], claims["iss"]) == ("account", "operator")
        assert claims["sub"] == names(keys)[key]
        accounts[claims["sub"]] = claims["nats"]
    return accounts


def passes(account, way):
    """Return an account's exports, or its imports with their accounts and names."""
    return [
        (
            claim["type"],
            *([claim["account"]] if way == "imports" else []),
            claim["subject"],
            *([claim["local_subject"]] if "local_subject" in claim else []),
        )
        for claim in account[way]
    ]


def test_the_server_trusts_one_operator_and_four_accounts(credentials, keys):
    lines = credentials.server_config().splitlines()
    operator = claims_in(lines[0].removeprefix("operator: "), keys)
    assert (operator["name"], operator["iss"], operator["sub"]) == ("torchloom", *2 * ["operator"])
    assert operator["nats"] == {"type": "operator", "version": 2, "system_account": "system"}
    assert lines[1] == f"system_account: {nats_jwt.public_key(keys.system)}"
    assert lines[2] == "resolver: MEMORY"
    assert set(trusted(credentials, keys)) == {"account", "workers", "people", "system"}


def test_only_the_runs_account_keeps_streams(credentials, keys):
    for name, account in trusted(credentials, keys).items():
        limits = account["limits"]
        stored = {limits[key] for key in ("mem_storage", "disk_storage", "streams", "consumer")}
        assert stored == ({-1} if name == "account" else {0}), name


def test_the_subjects_between_the_accounts_are_listed(credentials, keys):
    accounts = trusted(credentials, keys)
    for_workers = ["tl.cmd.run.*.*", "tl.roll.run", "tl.pause.run", "tl.steer.run"]
    streams = [*for_workers, "tl.out.run.>"]
    to_weaver = ["tl.telemetry.run.*.*", "tl.lighthouse.run"]
    by_workers = [*to_weaver, "tl.evt.run.*.*", "tl.bulk.run.*.*", "tl.ack.run.*.*"]
    assert passes(accounts["account"], "exports") == [
        ("service", ">"),
        *[("stream", subject) for subject in streams],
    ]
    assert accounts["account"]["exports"][0]["response_type"] == "Stream"
    of_server = ["$SYS.REQ.SERVER.PING.IDZ", "$SYS.REQ.SERVER.*.KICK"]
    assert passes(accounts["account"], "imports") == [
        *[("stream", "workers", subject) for subject in to_weaver],
        *[("service", "system", subject) for subject in of_server],
    ]
    assert passes(accounts["workers"], "exports") == [("stream", subject) for subject in by_workers]
    services = ["tl.ack.run.*.*", "tl.evt.run.*.*", "tl.bulk.run.*.*", "tl.join.run"]
    assert passes(accounts["workers"], "imports") == [
        *[("service", "account", subject) for subject in services],
        *[("stream", "account", subject) for subject in for_workers],
    ]
    assert passes(accounts["people"], "exports") == []
    assert passes(accounts["people"], "imports") == [
        *[("service", "account", subject) for subject in ["tl.ctl.run.*.>", *READ_BY_PEOPLE]],
        *[("stream", "account", subject) for subject in streams],
        *[("stream", "workers", subject) for subject in by_workers],
        ("service", "account", BUCKET, "tl.bucket.run"),
    ]
    assert accounts["people"]["mappings"] == {BUCKET: [{"subject": "tl.bucket.run"}]}
    for name in ("account", "workers", "system"):
        assert accounts[name]["mappings"] == {}
    shared = [one["subject"] for one in accounts["workers"]["imports"] if one.get("share")]
    assert shared == ["tl.join.run"]
    assert passes(accounts["system"], "imports") == []
    assert passes(accounts["system"], "exports") == [("service", name) for name in of_server]


def test_a_signing_key_gives_each_worker_its_own_name_and_incarnation_only(credentials, keys):
    accounts = trusted(credentials, keys)
    (scope,) = accounts["workers"]["signing_keys"]
    assert (scope["kind"], scope["key"], scope["role"]) == ("user_scope", "threadlets", "threadlet")
    assert scope["template"] == permitted(
        own(PUBLISHED_BY_WORKERS),
        [
            *("tl.cmd.run.{{name()}}.{{tag(life)}}", "tl.roll.run", "tl.pause.run"),
            "_INBOX_run_{{name()}}_{{tag(life)}}.>",
        ],
        64,
    )


def test_a_signing_key_gives_each_person_their_own_name_only(credentials, keys):
    accounts = trusted(credentials, keys)
    scopes = {scope["role"]: scope for scope in accounts["people"]["signing_keys"]}
    assert {role: scope["key"] for role, scope in scopes.items()} == {
        "viewer": "viewers",
        "operator": "operators",
        "admin": "admins",
    }
    assert scopes["viewer"]["template"] == permitted(
        [
            *("tl.ctl.run.{{name()}}.knobs", "tl.ctl.run.{{name()}}.status"),
            *READ_BY_PEOPLE,
            "tl.bucket.run",
        ],
        [
            *("tl.cmd.run.*.*", "tl.roll.run", "tl.pause.run", "tl.steer.run", "tl.out.run.>"),
            *("tl.telemetry.run.*.*", "tl.lighthouse.run"),
            *("tl.evt.run.*.*", "tl.bulk.run.*.*", "tl.ack.run.*.*"),
            "_INBOX.>",
        ],
        256,
    )


# --- storage of keys ---


def test_each_key_is_of_its_kind_and_there_is_no_second_of_it(keys):
    fields = msgspec.structs.asdict(keys)
    assert abs(time.time() - fields.pop("made_s")) < 60
    users = {"weaver", "person", "joiner", "lighthouse"}
    kinds = {name: "SU" if name in users else "SA" for name in fields} | {"operator": "SO"}
    assert {name: seed[:2] for name, seed in fields.items()} == kinds
    assert len(set(fields.values())) == len(fields)


def test_the_same_keys_are_found_again_and_say_the_same(credentials, tmp_path):
    written = _written(keys_file(tmp_path))
    config = credentials.server_config()
    for again in (Credentials.ensure(tmp_path, "run"), Credentials.find(tmp_path, "run")):
        assert again.server_config() == config
        assert again.weaver_creds == credentials.weaver_creds
    assert _written(keys_file(tmp_path)) == written


def _written(path):
    """Inode and write time of the file, without its access time."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def test_credentials_that_were_lost_are_written_again(credentials, tmp_path):
    files = (credentials.weaver_creds, credentials.operator_creds)
    assert [path.name for path in files] == ["weaver.creds", "operator.creds"]
    before = [path.read_text() for path in files]
    for path in files:
        path.unlink()
    Credentials.ensure(tmp_path, "run")
    assert [path.read_text() for path in files] == before


def test_where_no_weaver_was_started_nothing_is_made(tmp_path):
    with pytest.raises(StateError) as caught:
        Credentials.find(tmp_path, "run")
    assert str(caught.value) == (
        f"{keys_file(tmp_path)}: need the keys of a Weaver with the embedded broker, "
        "there are none; "
        "start `torchloom weaver` once"
    )
    assert not list(tmp_path.iterdir())


def test_keys_that_cannot_be_read_are_one_clear_line(tmp_path):
    keys_file(tmp_path).mkdir(parents=True)
    with pytest.raises(StateError) as caught:
        Credentials.find(tmp_path, "run")
    assert str(caught.value) == f"{keys_file(tmp_path)}: cannot be read: Is a directory"


@pytest.mark.parametrize("name", [*Keys.__struct_fields__])
def test_a_damaged_key_is_one_clear_line_whichever_it_is(credentials, tmp_path, name):
    found = json.loads(keys_file(tmp_path).read_text())
    keys_file(tmp_path).write_text(json.dumps({**found, name: "no key"}))
    with pytest.raises(StateError, match=r"keys\.json: the keys are damaged: .") as caught:
        Credentials.find(tmp_path, "run")
    assert str(caught.value).startswith(str(keys_file(tmp_path)))


@pytest.mark.parametrize("lacks", [("people",), ("operators",), ("people", "operators")])
def test_keys_of_an_earlier_version_are_not_taken_but_completed(keys, tmp_path, lacks):
    all_keys = msgspec.structs.asdict(keys)
    old = {name: key for name, key in all_keys.items() if name not in lacks}
    keys_file(tmp_path).write_text(json.dumps(old))
    with pytest.raises(StateError) as caught:
        Credentials.find(tmp_path, "run")
    assert str(caught.value).endswith(
        ", these are of an earlier version; start `torchloom weaver` once"
    )
    assert json.loads(keys_file(tmp_path).read_text()) == old
    Credentials.ensure(tmp_path, "run")
    completed = json.loads(keys_file(tmp_path).read_text())
    assert {name: completed[name] for name in old} == old
    assert {completed[name][:2] for name in lacks} == {"SA"}
    Credentials.find(tmp_path, "run")


def test_no_secret_can_be_read_by_others_not_even_for_a_moment(tmp_path, monkeypatch):
    modes = []
    replace = type(tmp_path).replace

    def seen(fresh, path):
        modes.append(stat.S_IMODE(fresh.stat().st_mode))
        return replace(fresh, path)

    monkeypatch.setattr(type(tmp_path), "replace", seen)
    path = tmp_path / "secret"
    (tmp_path / "secret.new").touch(0o644)  # a Weaver died while it wrote
    before = os.umask(0)
    try:
        write_private(path, "sé")
        folder = private_folder(tmp_path / "a" / "b")
        assert private_folder(folder) == folder
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert path.read_bytes() == "sé".encode()
    assert sorted(os.listdir(tmp_path)) == ["a", "secret"]


def test_a_secret_is_on_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    write_private(tmp_path / "secret", "new")
    assert synced == [3]


def test_a_secret_that_cannot_be_written_is_one_clear_line(tmp_path):
    with pytest.raises(StateError) as caught:
        write_private(tmp_path / "missing" / "secret", "")
    assert str(caught.value) == (
        f"{tmp_path / 'missing' / 'secret'}: cannot be written: No such file or directory"
    )


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(StateError) as caught:
        private_folder(tmp_path / "a" / "b")
    assert str(caught.value) == (
        f"state folder {tmp_path / 'a' / 'b'}: cannot be written: Not a directory"
    )
