"""The memory store is the reference: it passes the suite it is the reference for."""

import pytest

from holdfast.stores.memory import MemoryStore
from holdfast.testing.conformance import conformance

test_memory = conformance(lambda place, **given: MemoryStore(**given), durable=False, mark=pytest.mark.promise)
