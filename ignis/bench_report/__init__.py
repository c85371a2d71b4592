"""What ``ignis bench --report`` writes: a CSV of each run, and one HTML page about the last."""
