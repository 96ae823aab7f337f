"""What a page is told of a record, with the fields as attributes."""

from types import SimpleNamespace


def since(record, what, version=0):
    """Return the stories, lines or logs that have changed after a version."""
    return [SimpleNamespace(**one) for one in record.since(version)[what]]
