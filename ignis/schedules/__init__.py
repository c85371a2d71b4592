"""Schedules: messages that are published by the clock. When a tick is, what is stored, which ticks are fired."""
