"""``python -m ignis``: the same as the ``ignis`` command."""

from __future__ import annotations

import sys

from ignis.cli import main

if __name__ == "__main__":
    sys.exit(main())
