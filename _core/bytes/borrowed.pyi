from typing import Self, final

from typing_extensions import Buffer

@final
class Borrowed:
    def __new__(cls, data: Buffer) -> Self: ...
