from tests.threadlet.conftest import *  # noqa: F403 - the same broker, and the Weaver's part
