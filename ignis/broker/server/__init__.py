"""The broker itself: one port in front of a store."""
