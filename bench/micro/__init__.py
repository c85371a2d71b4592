"""Small benches of single steps, beside a reference that is measured in the same run; see docs/performance.md."""
