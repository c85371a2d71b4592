"""Benches: ignis beside its peers, measured in the same run on the same machine. ``python -m bench --help``."""
