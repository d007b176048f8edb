class ProducerState:
    epoch: int
    last_ms: int
    last_pos: int
    @property
    def last_sequence(self) -> int: ...
