"""A simulated disk that a test inspects before each call, as if the machine stopped there."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.harness.configs import DATA_DIR
from tests.support.simulator.sim_fs import Fault, SimFileSystem

CHECKPOINT: Final = DATA_DIR / "checkpoint"


class CrashPoints(SimFileSystem):
    """Calls `observer` before each call that reaches the disk.

    Attributes:
        meanwhile: called once, before a call that does not concern the checkpoint file, whose lock
            the caller may hold; it may call the disk itself, as another thread would.
    """

    def __init__(self) -> None:
        super().__init__()
        self.observer: Callable[[], None] = ignore_call
        self.meanwhile: Callable[[], None] | None = None

    def record_call(self, operation: str, path: Path, detail: str = "") -> Fault | None:
        if self.meanwhile is not None and path != CHECKPOINT:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        self.observer()
        return super().record_call(operation, path, detail)


def ignore_call() -> None:
    """Observe nothing."""
