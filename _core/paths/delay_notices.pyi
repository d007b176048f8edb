NOTICES_MAX: int
QUOTA_REASONS: tuple[str, ...]

class DelayNotice:
    client_id: bytes | None
    topic: str
    partition: int
    record: int
    offset: int
    count: int
    reason: str
    message: str

class DelayNotices:
    notices: list[DelayNotice]
    @property
    def refused(self) -> dict[str, int]: ...
    @property
    def passed(self) -> dict[str, int]: ...
    def take(self) -> list[DelayNotice]: ...
