from _core.log_scan import LogScan
from _core.projections import Projections

class CheckedProjections(Projections):
    fault_count: int
    def is_pending(self, accept_pos: int, index: int) -> bool: ...

class LogCheck(LogScan):
    keeps_positions: bool
    def take_faults(self) -> list[tuple[int, str, str]]: ...
    def take_positions(self) -> list[int]: ...
