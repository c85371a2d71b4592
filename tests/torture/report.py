"""What a test of the torture programme found: one line of figures, and whether anything was lost."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tests.torture.ledger import Verdict

__all__ = ["Outcome"]


@dataclass
class Outcome:
    """The result of one test.

    ``faults`` are losses: any makes the run fail. ``skipped`` says why nothing was done. ``planted`` and ``caught``
    count known-bad variants: one that was not caught fails the run as well, because then the checker is blind.
    """

    name: str
    skipped: str = ""
    rounds: int = 0
    figures: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    planted: list[str] = field(default_factory=list)
    caught: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.faults and set(self.caught) == set(self.planted)

    def add(self, **figures: int) -> None:
        for name, value in figures.items():
            self.figures[name] = self.figures.get(name, 0) + value

    def take(self, verdict: Verdict, where: str) -> bool:
        """Adds a verdict's figures; its faults are kept with ``where`` in front. Returns whether it was clean."""
        self.add(
            sent=verdict.sent,
            acked=verdict.acknowledged,
            seen=verdict.seen,
            lost=len(verdict.lost),
            invented=len(verdict.invented),
            altered=verdict.altered,
            duplicates=verdict.duplicates,
            unacked_seen=verdict.unacknowledged_seen,
        )
        self.faults += [f"{where}: {one}" for one in verdict.faults()]
        return verdict.ok

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def plant(self, name: str, caught: bool) -> None:
        self.planted.append(name)
        if caught:
            self.caught.append(name)

    def finish(self) -> Outcome:
        self.seconds = time.monotonic() - self.started
        return self

    def line(self) -> str:
        """One line for people and for logs."""
        if self.skipped:
            return f"{self.name}: SKIPPED ({self.skipped})"
        parts = [f"{self.name}: {'ok' if self.ok else 'FAILED'}", f"rounds={self.rounds}"]
        parts += [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.figures.items()
        ]
        if self.planted:
            parts.append(f"mutants={len(set(self.caught))}/{len(set(self.planted))}")
        parts.append(f"{self.seconds:.1f}s")
        return " ".join(parts)
