"""S3 keeps checkpoints as every storage must; a store that fails is one line, soon."""

import gc
import logging
from contextlib import contextmanager

import moto.settings
import pytest

from tests.checkpoint.faulty_proxy import FaultyProxy
from tests.checkpoint.s3_server import new_bucket, s3_server, use
from torchloom_core.checkpoints import bounded_s3, object_store
from torchloom_core.checkpoints.storage import storage_at
from torchloom_core.testing import StorageContract

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

SMALLEST_PART = 5 << 20  # that S3 takes


@pytest.fixture(scope="module")
def server():
    with s3_server() as url:
        yield url


@pytest.fixture(autouse=True)
def settings(monkeypatch, server):
    use(monkeypatch, server)
    monkeypatch.setattr(object_store, "PART_BYTES", SMALLEST_PART)


@pytest.fixture
def proxy(monkeypatch, server, caplog):
    monkeypatch.setattr(bounded_s3, "REQUEST_S", 4.0)
    with FaultyProxy(server) as proxy:
        use(monkeypatch, proxy.url)
        yield proxy
        gc.collect()  # an exception that nothing took is logged then
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


class TestS3(StorageContract):
    large_bytes = SMALLEST_PART + 1_000_000

    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.server = server

    @contextmanager
    def new_place(self):
        bucket = new_bucket(self.server)
        yield lambda: storage_at(f"s3://{bucket}/runs/run-7")


def test_a_bucket_itself_is_a_place(server):
    storage = storage_at(f"s3://{new_bucket(server)}")
    storage.write("step-1/a", [b"1"])
    assert (storage.folders(), storage.files("step-1")) == (["step-1"], ["a"])


def failures(url):
    """Return what each operation raises; each is one line that names the place."""
    storage = storage_at(url)
    tried = (
        storage.folders,
        lambda: storage.files("step-1"),
        lambda: storage.open("step-1/a").read(),
        lambda: storage.write("step-1/a", [b"1"]),
        lambda: storage.write("step-1/a", [bytes(SMALLEST_PART + 1)]),
        lambda: storage.remove("step-1"),
    )
    found = []
    for operation in tried:
        with pytest.raises(OSError, match=url) as raised:
            operation()
        assert "\n" not in str(raised.value)
        found.append(raised.value)
    return found


def test_a_missing_bucket_is_one_line():
    for error in failures("s3://no-such-bucket/run-7"):
        assert isinstance(error, FileNotFoundError)
        assert error.strerror == "The specified bucket does not exist"


def test_wrong_credentials_are_one_line(monkeypatch, server):
    bucket = new_bucket(server)
    monkeypatch.setattr(moto.settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
    for error in failures(f"s3://{bucket}/run-7"):
        assert isinstance(error, PermissionError)


def test_no_credentials_are_one_line(monkeypatch, server, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for error in failures(f"s3://{new_bucket(server)}/run-7"):
        assert error.strerror == "Unable to locate credentials"


def test_a_server_that_is_not_there_is_one_line(proxy):
    proxy.vanish()
    for error in failures("s3://bucket/run-7"):
        assert error.strerror.startswith("Could not connect to the endpoint URL")


def test_a_store_that_answers_503_is_one_line(proxy):
    proxy.is_unavailable = True
    assert len(failures("s3://bucket/run-7")) == 6


def begin(fault, proxy, size):
    match fault:
        case "slow":
            proxy.bytes_per_s = 20e3
        case "stalled":
            proxy.bytes_per_s = 1.0
        case "503":
            proxy.is_unavailable = True
            proxy.cut()
        case "cut":
            proxy.cut_after = size // 2
        case "gone":
            proxy.vanish()


def end(fault, proxy):
    if fault == "gone":
        proxy.appear()
    proxy.bytes_per_s, proxy.is_unavailable = 0.0, False
    proxy.cut()


@pytest.mark.parametrize("fault", ["slow", "stalled", "503", "gone"])
@pytest.mark.parametrize("size", [1_000_000, 2 * SMALLEST_PART])
def test_a_store_that_fails_in_a_write_leaves_nothing_and_takes_the_next(
    proxy, server, fault, size
):
    storage = storage_at(f"s3://{new_bucket(server)}/run-7")
    storage.write("step-1/a", [b"good"])
    content = [bytes(size), bytes(size)]

    def parts():
        yield content[0]
        begin(fault, proxy, size)
        yield content[1]

    with pytest.raises(OSError, match="step-2/a"):
        storage.write("step-2/a", parts())
    end(fault, proxy)
    assert storage.files("step-2") == []
    storage.write("step-2/a", content)
    assert read(storage, "step-2/a") == b"".join(content)
    assert read(storage, "step-1/a") == b"good"


@pytest.mark.parametrize("fault", ["slow", "stalled", "503", "gone"])
def test_a_store_that_fails_in_a_read_is_one_line_and_is_read_afterwards(proxy, server, fault):
    storage = storage_at(f"s3://{new_bucket(server)}/run-7")
    content = bytes(range(256)) * 20_000
    storage.write("step-1/a", [content])
    begin(fault, proxy, len(content))
    with pytest.raises(OSError, match="step-1/a"):
        read(storage, "step-1/a")
    end(fault, proxy)
    assert read(storage, "step-1/a") == content


@pytest.mark.parametrize("size", [1_000_000, 2 * SMALLEST_PART])
def test_one_cut_is_made_good_by_another_attempt(proxy, server, size):
    storage = storage_at(f"s3://{new_bucket(server)}/run-7")
    storage.files("step-1")
    begin("cut", proxy, size)
    storage.write("step-1/a", [bytes(size)])
    begin("cut", proxy, size)
    assert read(storage, "step-1/a") == bytes(size)
    assert proxy.cut_after == 0


def read(storage, name):
    with storage.open(name) as file:
        return file.read()
