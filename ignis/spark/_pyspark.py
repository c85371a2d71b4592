"""What comes from PySpark: the one file that imports it."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from ignis.errors import ConfigError

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark import AccumulatorParam, TaskContext
    from pyspark.errors import AnalysisException, PySparkException
    from pyspark.sql import Column, DataFrame, SparkSession, Window, functions
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        InputPartition,
        WriterCommitMessage,
    )
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
    from pyspark.sql.types import BinaryType, IntegralType, StringType, StructType, TimestampType
else:
    try:
        import pyarrow as pa  # noqa: F401 - named here, because PySpark would miss it only later and less clearly
        from py4j.protocol import Py4JJavaError
        from pyspark import AccumulatorParam, TaskContext
        from pyspark.errors import AnalysisException, PySparkException
        from pyspark.sql import Column, DataFrame, SparkSession, Window, functions
        from pyspark.sql.datasource import (
            DataSource,
            DataSourceArrowWriter,
            DataSourceReader,
            DataSourceStreamArrowWriter,
            DataSourceStreamReader,
            InputPartition,
            WriterCommitMessage,
        )
        from pyspark.sql.pandas.functions import arrow_udf
        from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
        from pyspark.sql.types import BinaryType, IntegralType, StringType, StructType, TimestampType
    except ImportError as exc:
        _python = sys.executable or "python3"
        raise ConfigError(
            f"Spark stages need PySpark 4.2 or newer with pyarrow ({exc}, in {_python}): {shlex.quote(_python)} -m pip install "
            "'ignis-mq[spark]'; if this is a worker of Spark's and not the driver's interpreter, set PYSPARK_PYTHON to that one"
        ) from exc

__all__ = [
    "AccumulatorParam",
    "AnalysisException",
    "BinaryType",
    "Column",
    "DataFrame",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "IntegralType",
    "Py4JJavaError",
    "PySparkException",
    "ReadLimit",
    "ReadMaxRows",
    "SparkSession",
    "StringType",
    "StructType",
    "SupportsTriggerAvailableNow",
    "TaskContext",
    "TimestampType",
    "Window",
    "WriterCommitMessage",
    "arrow_udf",
    "functions",
]
