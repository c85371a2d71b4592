"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import spark as spark_support


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The process's one Spark session."""
    session = spark_support.start(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def spark(spark_session: Any) -> Iterator[Any]:
    """The session; what a test has opened in this process, the driver, is closed after it, with its threads."""
    from ignis.spark.queue_path import close_stores

    yield spark_session
    close_stores()
