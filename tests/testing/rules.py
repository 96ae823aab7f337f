"""Find the tests of a contract that a plugin fails."""

from typing import Any


def broken_rules(contract: type[Any], **attributes: Any) -> set[str]:
    """Return the names of the contract's tests that fail for a subclass with ``attributes``."""
    case = type("Case", (contract,), attributes)()
    failed = set()
    for name in dir(case):
        if name.startswith("test_"):
            try:
                getattr(case, name)()
            except Exception:  # noqa: BLE001 - any exception fails the test
                failed.add(name)
    return failed
