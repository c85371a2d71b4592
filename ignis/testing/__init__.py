"""For the tests of applications: a fresh store in memory, handlers run in the test's own thread, time by hand, messages and
contexts without a store. See docs/testing.md.

The fixtures are in ``ignis.testing.plugin``; ``pytest_plugins = ["ignis.testing.plugin"]`` in ``conftest.py`` turns them on.
Nothing else here needs pytest.
"""

from ignis.testing.clock import ManualClock
from ignis.testing.drain import Drained, adrain, drain
from ignis.testing.make import make_context, make_message
from ignis.testing.memory import use_memory_store

__all__ = ["Drained", "ManualClock", "adrain", "drain", "make_context", "make_message", "use_memory_store"]
