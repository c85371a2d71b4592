"""What the result codes of an Aerospike server become. What a Community server answers is tried in
``tests/integration/aerospike/test_aerospike_doctor.py``; it has no users, so that those answers are tried here alone."""

from __future__ import annotations

import pytest

from ignis.errors import StoreError, StoreUnreachableError
from ignis.storage.aerospike.options import AerospikeOptions
from ignis.storage.aerospike.status_codes import AUTHENTICATION, error_of


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (51, "leave user and password away"),  # the Community Edition has no security
        (52, "leave user and password away"),  # it is turned off
        (60, "does not let us in"),  # no such user
        (62, "does not let us in"),  # another password
        (81, "does not let us in"),  # a role without that permission
        (82, "does not let us in"),  # another address than the user's
    ],
)
def test_a_refused_user_is_no_server_that_is_away(code: int, said: str) -> None:
    options = AerospikeOptions(user="ann", password="secret")
    found = error_of(code, "connecting to db:3000", options, "test", "no")
    assert code in AUTHENTICATION
    assert isinstance(found, StoreError)
    assert not isinstance(found, StoreUnreachableError)
    assert not found.retryable
    assert said in str(found)
    assert f"(code {code})" in str(found)
    assert "secret" not in str(found)
