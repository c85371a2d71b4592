"""``python -m ignis``: the same as the ``ignis`` command."""

from __future__ import annotations

import sys

from ignis.loading import end_if_command

try:
    from ignis.cli import main
except KeyboardInterrupt:
    end_if_command()
    raise

if __name__ == "__main__":
    sys.exit(main())
