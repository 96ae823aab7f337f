"""Which tests of a contract a plugin fails."""

from typing import Any


def broken_rules(contract: type[Any], **attributes: Any) -> set[str]:
    """Return the names of the contract's tests that fail for a subclass with ``attributes``."""
    case = type("Case", (contract,), attributes)()
    failed = set()
    for name in dir(case):
        if name.startswith("test_"):
            try:
                getattr(case, name)()
            except Exception:  # noqa: BLE001 - whatever it raises, the test would fail
                failed.add(name)
    return failed
