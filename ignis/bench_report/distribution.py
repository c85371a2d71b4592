"""The distribution of many times as counts in buckets of even width on a logarithmic axis: twenty to a factor of ten.

A bucket's bounds are 12 % apart, so that a share read from the counts is off by no more, and powers of ten are bounds.
Counts of several rounds add up. A bucket is named by its number: ``20`` ends at 10 µs, ``40`` at 100 µs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["bound_us", "buckets", "counted", "decades", "quantile", "share_within", "shares", "text"]

_IN_TEN = 20
_LEAST_US = 1e-3
"""No clock here tells less than a nanosecond."""


def quantile(ordered: Sequence[float], q: float) -> float:
    """The nearest-rank quantile of an ascending sequence: a value that was observed, never an interpolation."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))] if ordered else math.nan


def bound_us(bucket: int) -> float:
    """The longest time that falls into the bucket."""
    return float(10.0 ** (bucket / _IN_TEN))


def buckets(values_us: Iterable[float]) -> Counter[int]:
    """How many of the times fall into each bucket."""
    # What lies on a bound but for rounding belongs below it.
    return Counter(math.ceil(_IN_TEN * math.log10(max(one, _LEAST_US)) - 1e-9) for one in values_us)


def text(counts: Mapping[int, int]) -> str:
    """As a field of a table: ``12.59:340 14.13:22`` are 340 times of up to 12.59 µs and 22 between that and 14.13 µs."""
    return " ".join(f"{bound_us(bucket):.4g}:{counts[bucket]}" for bucket in sorted(counts))


def counted(field: str) -> Counter[int]:
    """What `text` wrote. Raises ValueError for anything else."""
    found: Counter[int] = Counter()
    for one in field.split():
        bound, _, count = one.partition(":")
        found[round(_IN_TEN * math.log10(float(bound)))] += int(count)
    return found


def shares(counts: Mapping[int, int]) -> tuple[list[float], list[float]]:
    """The empirical distribution: ascending times in microseconds, and the share that took no longer than each."""
    total = sum(counts.values())
    # From a share of zero, so that the curve begins on the axis.
    at, held, seen = [bound_us(min(counts) - 1)], [0.0], 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        at.append(bound_us(bucket))
        held.append(seen / total)
    return at, held


def share_within(counts: Mapping[int, int], decade: int) -> float:
    """The share of the times that took no longer than 10 to the power ``decade`` microseconds: exact."""
    return sum(count for bucket, count in counts.items() if bucket <= decade * _IN_TEN) / sum(counts.values())


def decades(several: Sequence[Mapping[int, int]]) -> range:
    """The powers of ten, in microseconds, from the first that any of the distributions reaches to the one that holds all."""
    ends = [math.ceil(bucket / _IN_TEN) for counts in several for bucket in counts]
    return range(min(ends), max(ends) + 1) if ends else range(0)
