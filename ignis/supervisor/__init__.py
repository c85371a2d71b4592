"""Worker processes: started, watched, replaced, scaled and ended. What ``ignis worker --processes`` runs."""

from ignis.supervisor.local import LocalProcesses
from ignis.supervisor.manager import Supervisor
from ignis.supervisor.process import WorkerCommand

__all__ = ["LocalProcesses", "Supervisor", "WorkerCommand"]
