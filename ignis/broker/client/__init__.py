"""The broker's clients: for coroutines, for threads, and as the store of an application."""
