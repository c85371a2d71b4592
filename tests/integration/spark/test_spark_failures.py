"""What failures leave: nothing is lost, and with ids nothing is there twice. The long form is ``tests.torture spark``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

pytest.importorskip("pyspark")

from tests.torture import spark as failures  # noqa: E402
from tests.torture.spark import Found  # noqa: E402

CLEAN = Found(0, 0, 0)


class TestWorkerKilled:
    @pytest.mark.long
    def test_publishing_with_ids(self, spark: Any, tmp_path: Path) -> None:
        assert failures.publish_killed(spark, tmp_path, 1, 2, ids=True) == CLEAN

    @pytest.mark.long
    def test_publishing_without_ids_doubles_what_was_committed(self, spark: Any, tmp_path: Path) -> None:
        found = failures.publish_killed(spark, tmp_path, 1, 1, ids=False)
        assert (found.lost, found.invented) == (0, 0)
        # Of each partition the two transactions whose receipts were there, and those that may have been under way: the rest.
        transactions, rest = divmod(found.duplicates, failures.BATCH_ROWS)
        assert (rest, transactions in range(3 * 2, 3 * 4 + 1)) == (0, True), "the checker sees them"

    def test_draining(self, spark: Any, tmp_path: Path) -> None:
        assert failures.drain_killed(spark, tmp_path, 1, 2) == CLEAN


class TestSideBySide:
    def test_with_ids(self, spark: Any, tmp_path: Path) -> None:
        assert failures.publish_side_by_side(spark, tmp_path, ids=True) == CLEAN


class TestCommit:
    @pytest.mark.parametrize("late", [False, True])
    def test_one_that_fails_is_called_again(self, spark: Any, tmp_path: Path, late: bool) -> None:
        assert failures.commit_failed(spark, tmp_path, 2, late) == CLEAN

    @pytest.mark.long
    def test_a_driver_killed_in_the_middle_of_it(self, spark: Any, tmp_path: Path) -> None:
        assert failures.driver_killed(spark, tmp_path, "committing", 2) == CLEAN
