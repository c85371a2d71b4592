"""Queues as lines of JSON: written from one store, read into another."""
