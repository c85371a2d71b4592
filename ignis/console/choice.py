"""Which messages of a sideline are meant: the same conditions for the list and for what is done to them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ignis.message_filter import Filter

__all__ = ["Id", "IdList", "SidelineWhere", "Wanted"]

_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_MOST_HEADERS = 20
Id = Annotated[str, Meta(pattern=_UUID, max_length=36, description="The id of a message.")]
IdList = Annotated[list[Id], Meta(min_length=1, max_length=1_000)]
HeaderName = Annotated[str, Meta(min_length=1, max_length=1_000)]
HeaderValue = Annotated[str, Meta(max_length=1_000)]


class SidelineWhere(msgspec.Struct, forbid_unknown_fields=True):
    """The conditions, as a query has them. What is empty is no condition."""

    reason: Annotated[str, Meta(max_length=64, description="Only what failed for this reason.")] = ""
    key: Annotated[str, Meta(max_length=1_000, description="Only messages of this key.")] = ""
    error: Annotated[str, Meta(max_length=1_000, description="Only messages whose error contains this.")] = ""
    id: Annotated[str, Meta(max_length=36, description="Only the message with this id.")] = ""
    older_than_s: (
        Annotated[float, Meta(ge=0, le=1e9, description="Only what failed so many seconds ago or more.")] | None
    ) = None
    header: Annotated[
        str,
        Meta(
            max_length=2_001,
            pattern="^$|^[^=]+=",
            description="Only messages with this header, as `name=value`. A value that is no text is compared as JSON.",
        ),
    ] = ""
    text: Annotated[str, Meta(max_length=1_000, description="Only messages in whose stored body this stands.")] = ""

    def filter(self) -> Filter:
        """As the command line has it."""
        name, _, value = self.header.partition("=")
        return Filter(
            ids=(self.id.lower(),) if self.id else (),
            key=self.key or None,
            older_than=self.older_than_s,
            reasons=(self.reason,) if self.reason else (),
            error=self.error or None,
            headers=((name, value),) if name else (),
            text=self.text or None,
        )


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages of a sideline are meant: those that meet every condition."""

    ids: Annotated[list[Id], Meta(max_length=1_000)] = []
    key: Annotated[str, Meta(max_length=1_000)] | None = None
    reasons: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=20)] = []
    error: Annotated[str, Meta(max_length=1_000)] | None = None
    older_than_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    headers: Annotated[dict[HeaderName, HeaderValue], Meta(max_length=_MOST_HEADERS)] = {}
    text: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None

    def told(self) -> dict[str, Any]:
        """For the audit log: of keys, errors, headers and texts, which are contents, only that they were asked for."""
        said = {"ids": self.ids, "reasons": self.reasons, "older_than_s": self.older_than_s}
        contents = {
            "by_key": self.key is not None, "by_error": self.error is not None, "by_header": bool(self.headers),
            "by_text": self.text is not None,
        }  # fmt: skip
        return {name: value for name, value in {**said, **contents}.items() if value}

    def filter(self) -> Filter:
        """As the command line has it."""
        return Filter(
            tuple(one.lower() for one in self.ids), self.key, self.older_than_s, tuple(self.reasons), self.error,
            tuple(self.headers.items()), self.text,
        )  # fmt: skip
