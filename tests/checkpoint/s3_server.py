"""An S3 server on loopback, in this process."""

import itertools
import logging
import urllib.request
from contextlib import contextmanager

from moto.server import ThreadedMotoServer

_numbers = itertools.count()


@contextmanager
def s3_server():
    """Give the URL of a server that keeps everything in memory."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def new_bucket(server):
    """Return the name of a new bucket."""
    bucket = f"bucket-{next(_numbers)}"
    urllib.request.urlopen(urllib.request.Request(f"{server}/{bucket}", method="PUT")).close()
    return bucket


def use(monkeypatch, endpoint):
    """Have S3's clients use a server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
