"""Every exception that a broker can answer arrives as the same class, with its numbers."""

from __future__ import annotations

import inspect
import pickle

import pytest

from ignis import errors
from ignis.broker.protocol.encoding import pack, unpack
from ignis.broker.protocol.errors import failure_of, to_exception
from ignis.broker.protocol.payloads import Failure
from ignis.errors import BrokerError, IgnisError, PermissionDeniedError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, IgnisError)]
SAMPLES = {"str": "some text", "int": 17, "float": 2.5, "bool": False, "tuple[str, ...]": ("a", "b")}


def sample(kind: type[IgnisError]) -> IgnisError:
    own = next(
        (vars(one)["__init__"] for one in kind.__mro__ if "__init__" in vars(one) and issubclass(one, IgnisError)), None
    )
    if own is None:
        return kind("some text")
    parameters = list(inspect.signature(own).parameters.values())[1:]
    return kind(*(SAMPLES[str(one.annotation)] for one in parameters if one.kind is not one.KEYWORD_ONLY))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_there_and_back(kind: type[IgnisError]) -> None:
    sent = sample(kind)
    received = to_exception(unpack(pack(failure_of(sent)), Failure)[0])
    assert type(received) is kind
    assert str(received) == str(sent)
    assert (received.code, received.retryable) == (sent.code, sent.retryable)
    assert vars(received) == vars(sent)


def test_an_unknown_code() -> None:
    found = to_exception(Failure("of_a_later_release", "something new", True))
    assert type(found) is BrokerError
    assert found.retryable
    assert "of_a_later_release: something new" in str(found)


def test_arguments_of_another_release() -> None:
    found = to_exception(Failure("too_many_requests", "too many", True, False, [1, 2, "three", 4, 5, 6]))
    assert isinstance(found, BrokerError)
    assert "too many" in str(found)


@pytest.mark.parametrize(
    ("denied", "says"),
    [
        (
            PermissionDeniedError("SEND", "orders"),
            "no permission for SEND on queue 'orders': that takes publish, work or all",
        ),
        (PermissionDeniedError("STATS"), "no permission for STATS: that takes look:* or all:*"),
    ],
)
def test_a_refusal_says_which_words_allow_it(denied: PermissionDeniedError, says: str) -> None:
    received = to_exception(failure_of(denied))
    assert isinstance(received, PermissionDeniedError)
    assert str(received) == says
    assert str(pickle.loads(pickle.dumps(received))) == says
    assert received.words == tuple(says.partition("takes ")[2].replace(" or ", ", ").split(", "))


def test_a_refusal_that_says_it_already_says_it_once() -> None:
    received = to_exception(failure_of(PermissionDeniedError("DECLARE", "orders")))
    assert isinstance(received, PermissionDeniedError)
    assert received.words == ("manage", "all")
    assert "that takes" not in str(received)


def test_an_error_that_is_not_ours_says_nothing_of_the_inside() -> None:
    failure = failure_of(RuntimeError("secret path /x"))
    assert failure.code == "broker"
    assert "secret" not in failure.message
    assert failure_of(ValueError("limit 0")).code == "bad_request"
