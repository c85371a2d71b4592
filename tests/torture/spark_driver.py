"""A driver that drains a queue into Parquet and kills itself at a named point: ``url out point commits``."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from ignis.spark import drain, drain_task
from tests.support import spark as spark_support


class Dying:
    """A store's magazines under which the process dies after so many deletes."""

    def __init__(self, inner: Any, after: int) -> None:
        self._inner = inner
        self._left = after

    def delete(self, magazine: str, pointers: Any) -> int:
        count = int(self._inner.delete(magazine, pointers))
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def main(url: str, out: str, point: str, commits: int) -> None:
    with tempfile.TemporaryDirectory(prefix="ignis-driver-") as directory:
        spark = spark_support.start(Path(directory))
        drained = drain(spark, url, "q", schema="id long", job="job")
        if point == "claimed":
            os.kill(os.getpid(), signal.SIGKILL)
        drained.df.select("id").write.mode("overwrite").parquet(out)
        if point == "written":
            os.kill(os.getpid(), signal.SIGKILL)
        drained._to_retire = list(drain_task.pieces(drained.runs, 100))
        drained._magazines = Dying(drained._magazines, commits)  # type: ignore[assignment]
        drained.commit()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
