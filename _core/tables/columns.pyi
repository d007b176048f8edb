from typing_extensions import Buffer

class Memory(Buffer):
    def __len__(self) -> int: ...
