from collections.abc import Callable
from typing import Protocol, Self

from _core.paths.answer import Reply
from _core.paths.batch_work import BatchWork
from _core.paths.fetch import FetchPath
from _core.paths.parked_fetch import ParkedFetch
from _core.paths.produce import ProducePath

class _Trace(Protocol):
    def begin(self) -> None: ...
    def end(self, header: tuple[int, int, int, bytes | None], size: int, outcome: int) -> None: ...
    def leave(self, count: int) -> None: ...

KEY_PRODUCE: int
KEY_FETCH: int
PRODUCE_MIN: int
PRODUCE_MAX: int
PRODUCE_FLEXIBLE: int
FETCH_MIN: int
FETCH_MAX: int
FETCH_FLEXIBLE: int

TRACE_ANSWERED: int
TRACE_PARKED: int
TRACE_SILENT: int

QUEUED_MAX_BYTES: int

class ResponseSlot:
    session: Session | None
    answered: bool
    def complete(self, reply: Reply) -> None: ...

class Session:
    produce: ProducePath
    fetch: FetchPath
    close_reason: str | None
    paused: bool
    yielded: bool
    work: BatchWork | None
    has_more: bool
    taken_bytes: int
    taken_shared_bytes: int
    shared_bytes: int
    queued_max_bytes: int
    new_parked: list[ParkedFetch]
    requests: int
    silent_pos: int
    late_count: int
    trace: _Trace | None
    def __new__(
        cls,
        produce: ProducePath,
        fetch: FetchPath,
        control_plane: Callable[[bytes], Reply | ResponseSlot | str],
        *,
        request_size_max: int,
    ) -> Self: ...
    def get_buffer(self) -> memoryview: ...
    def received(self, count: int, *, now_ns: int) -> None: ...
    def postpone(self, count: int) -> int: ...
    def resume(self, *, now_ns: int) -> None: ...
    def yield_turn(self) -> None: ...
    def compact(self, keep_bytes: int = ...) -> None: ...
    def trim(self) -> None: ...
    def retry(self, parked: ParkedFetch) -> bool: ...
    def output(
        self, durable_pos: int, size_max: int = ..., *, local_pos: int = ...
    ) -> list[bytes | memoryview]: ...
    def time_out(
        self, now_ms: int, wait_max_ms: int, durable_pos: int, local_pos: int = ...
    ) -> int: ...
    @property
    def held_bytes(self) -> int: ...
    @property
    def partial_bytes(self) -> int: ...
    @property
    def wanted_bytes(self) -> int: ...
    @property
    def is_waiting(self) -> bool: ...
    @property
    def is_begun(self) -> bool: ...
    @property
    def awaits_flush(self) -> bool: ...
    def close(self) -> None: ...
