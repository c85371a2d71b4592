from typing import Final, final

from typing_extensions import Self

NONE: Final[int]
BOOL: Final[int]
INT: Final[int]
FLOAT: Final[int]
STR: Final[int]
BYTES: Final[int]
ANYTHING: Final[int]

@final
class Plan:
    def __new__(cls, scalars: int, items: Plan | None = None, values: Plan | None = None) -> Self: ...
    def add_object(self, kind: type, names: tuple[str, ...], plans: tuple[Plan, ...]) -> None: ...
    def holds(self, value: object) -> bool: ...
