from typing import Self

class ReadReplica:
    node_id: int
    near_count: int
    late_count: int
    def __new__(cls) -> Self: ...
    def set(self, node_id: int, rack: bytes, late_bytes: int) -> None: ...
