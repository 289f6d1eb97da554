from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_server import FakeServer, serving


@pytest.fixture
def rounds_server() -> Iterator[FakeServer]:
    """A server that knows rounds."""
    with serving(FakeServer()) as fake:
        yield fake


@pytest.fixture
def plain_server() -> Iterator[FakeServer]:
    """An OpenAI-compatible server that knows nothing of rounds."""
    with serving(FakeServer(knows_rounds=False)) as fake:
        yield fake
