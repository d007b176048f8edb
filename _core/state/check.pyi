from _core.state.projections import Projections
from _core.state.scan import LogScan

class CheckedProjections(Projections):
    fault_count: int

class LogCheck(LogScan):
    keeps_positions: bool
    def take_faults(self) -> list[tuple[int, str, str]]: ...
    def take_positions(self) -> list[int]: ...
