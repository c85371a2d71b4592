"""Worker processes of this machine as something that the autoscaler scales."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from ignis.config import SupervisorSettings
from ignis.errors import WaitTimeoutError
from ignis.stacks import start_thread
from ignis.supervisor.manager import Supervisor
from ignis.supervisor.process import WorkerCommand

__all__ = ["LocalProcesses"]


class LocalProcesses:
    """``ignis worker`` processes under a supervisor in a thread of its own. Thread-safe; a context manager.

    For programs that scale by themselves; ``ignis worker --processes 1 --autoscale 4`` needs no code.

    Args:
        target: ``MODULE:APP``, as for ``ignis worker``.
        options: further options of ``ignis worker``: ``["--url", ..., "--queue", ...]``.
        processes: how many at first.
        environment, directory: of the processes; None = this one's.
        settings: see ``ignis.config``.
        stop_timeout_s: how long a process may drain.
    """

    def __init__(
        self,
        target: str,
        options: Sequence[str] = (),
        *,
        processes: int = 1,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        settings: SupervisorSettings | None = None,
        stop_timeout_s: float = 30.0,
    ) -> None:
        command = WorkerCommand([target, *options], environment, directory)
        self._stop_timeout_s = stop_timeout_s
        self._ready = threading.Event()
        self._closing = False
        self.supervisor = Supervisor(
            command, processes, settings=settings, stop_timeout_s=stop_timeout_s, on_started=self._ready.set
        )
        self._thread = threading.Thread(target=self.supervisor.run, name="ignis-supervisor", daemon=True)
        start_thread(self._thread)

    def wait_ready(self, timeout: float) -> None:
        """Until the first processes consume. Raises WaitTimeoutError."""
        if not self._ready.wait(timeout):
            raise WaitTimeoutError(f"the worker processes do not consume after {timeout:g} s")

    def workers(self) -> int:
        """See `Supervisor.workers`."""
        return self.supervisor.workers()

    def scale_to(self, count: int) -> None:
        """See `Supervisor.scale_to`."""
        self.supervisor.scale_to(count)

    def close(self, timeout: float | None = None) -> None:
        """Drains all processes and waits for their end. Idempotent. Raises WaitTimeoutError."""
        if not self._closing:  # a second request would end them at once
            self._closing = True
            self.supervisor.request_stop()
        timeout = self._stop_timeout_s + 60 if timeout is None else timeout
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise WaitTimeoutError(f"the worker processes did not end within {timeout:g} s")

    def __enter__(self) -> LocalProcesses:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
