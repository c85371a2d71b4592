"""The torture programme: what must not be lost is attacked, and a checker counts what is missing afterwards.

Run it with ``python -m tests.torture all``. Short forms of every test are in ``tests/crash`` and belong to the
ordinary suite. Every test whose checker could be blind also runs with a planted fault that it has to find: here, and with
``make test-long``.
"""
