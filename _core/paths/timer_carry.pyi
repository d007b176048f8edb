from _core.log.view import Block
from _core.state.writer import LogWriter

class TimerCarry:
    writer: LogWriter
    carried_timers: int
    carried_bytes: int
    def __new__(cls, writer: LogWriter, *, batch_size_max: int) -> TimerCarry: ...
    def carry(self, rows: bytes, blocks: list[Block], now_ms: int) -> bool: ...
