"""Every error that latermq raises on purpose, by who must act.

The operator acts on ConfigError, AddressError, DataDirectoryLockedError, StorageError and
BackupError; the caller on RequestError and SnapshotError; the author of the client on
RemoteProtocolError; the owner of the disk on CorruptionError, FormatVersionError and
LogRefusedError; the user of a command on SegmentFreedError and UnreachableError. After
NotReadyError the caller waits. Any other exception that leaves the broker is a bug. Layer 1; does
no I/O.
"""

import errno as errno_names
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

_UNREADABLE: Final = frozenset(
    [
        errno_names.EIO,
        errno_names.ENODATA,  # a medium error, from drivers that distinguish it
        errno_names.EREMOTEIO,
        errno_names.EBADMSG,  # a checksum of the file system
        errno_names.EUCLEAN,
    ]
)


class LatermqError(Exception):
    """The base of all errors here; never raised itself."""

    def __init__(self, message: str) -> None:
        if type(self) is LatermqError:
            raise TypeError(
                "LatermqError is a base class: raise the subclass that says who must act"
            )
        super().__init__(message)
        self.message = message


class ConfigError(LatermqError):
    """A setting is wrong; the message names it, its value and the allowed values."""


class UnsafeDirectoryError(ConfigError):
    """Other users may have changed the data directory; the message says what to do."""


class AddressError(LatermqError):
    """The broker cannot listen on an address now: it is in use, or this machine lacks it yet."""


class RequestError(LatermqError):
    """A request is refused and its caller can correct it; nothing of it was stored.

    The message is a sentence for the caller that says what is wrong; for a limit, it names the
    setting. Each client protocol has its own codes for the subclasses.
    """


class UnknownTopicError(RequestError):
    """The topic or partition does not exist."""


class InvalidTopicError(RequestError):
    """The topic's name is not allowed."""


class TopicExistsError(RequestError):
    """A topic of that name already exists."""


class InvalidPartitionsError(RequestError):
    """The partition count is not allowed."""


class InvalidSettingError(RequestError):
    """A topic setting is unknown, not supported or has a bad value."""


class InvalidRequestError(RequestError):
    """The request contradicts itself or names what does not exist."""


class PolicyError(RequestError):
    """The request exceeds a limit of this broker."""


class ProducerQuotaError(RequestError):
    """There are too many idempotent producers for now: the caller tries again later."""


class DiskFullError(RequestError):
    """The disk has no room for the change."""


class TooLargeError(RequestError):
    """What is to be stored is larger than a frame may be."""


class OffsetsTooLargeError(RequestError):
    """The committed offsets take more than they may."""


class SnapshotError(LatermqError):
    """A snapshot of the log cannot be made, found or removed as asked; nothing was changed.

    Args:
        reason: "name", "exists", "unknown", "full" or "unsupported".
        message: a sentence for the caller.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BackupError(LatermqError):
    """A backup cannot be made or restored as asked; the message says what to do."""


class ClockError(LatermqError):
    """The clock cannot be advanced."""


class FindError(LatermqError):
    """What somebody looks for cannot be found as asked.

    Args:
        reason: "request" or "position" if the request is wrong, "unknown" if what it names does not
            exist, "gone" if it was freed meanwhile.
        message: a sentence for the caller.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RemoteProtocolError(LatermqError):
    """The peer sent bytes that are not a request: send no answer and close the connection."""


class CorruptionError(LatermqError):
    """Bytes read from a file differ from those written.

    Args:
        path: the file.
        offset: position in the file, in bytes, of the first error.
        expected: the expected content, in words or as a value.
        found: the actual content.
    """

    def __init__(self, path: Path, offset: int, expected: object, found: object) -> None:
        super().__init__(f"{path} is damaged at byte {offset}: expected {expected}, found {found}")
        self.path = path
        self.offset = offset
        self.expected = expected
        self.found = found


class FormatVersionError(LatermqError):
    """A newer latermq wrote this file, in a format that this one cannot read.

    Args:
        path: the file.
        offset: position in the file, in bytes.
        found: the content there, such as "a frame of format version 2".
        known: what this latermq can do, such as "reads version 1 and below".
    """

    def __init__(self, path: Path, offset: int, *, found: str, known: str) -> None:
        super().__init__(
            f"{path} has {found} at byte {offset}; this latermq {known}: use the version that "
            "wrote it, or a newer one"
        )
        self.path = path
        self.offset = offset
        self.found = found
        self.known = known


class LogRefusedError(LatermqError):
    """The log is not the one that this directory held before, or a large part of it is missing.

    Nothing was changed. Args:
        path: the directory of the log.
        fault: what is wrong, in a few words.
        expected: the log that the checkpoint describes.
        found: the log that is present.
        advice: what the operator can do.
    """

    default_advice: ClassVar[str] = (
        "Mount or restore what is missing and start again; to continue without it for good, start "
        "once with --accept-loss"
    )

    def __init__(
        self, path: Path, fault: str, expected: str, found: str, *, advice: str = default_advice
    ) -> None:
        super().__init__(
            f"{path}: {fault}: expected {expected}; found {found}. Nothing was changed. {advice}"
        )
        self.path = path
        self.fault = fault
        self.expected = expected
        self.found = found


class StorageError(LatermqError):
    """The operating system refused a file operation.

    Args:
        path: the file or directory.
        operation: the system call, such as `pwritev`.
        errno: its error number.
        reason: the text of strerror.
    """

    def __init__(self, path: Path, operation: str, errno: int, reason: str) -> None:
        name = errno_names.errorcode.get(errno, "unknown")
        super().__init__(f"{operation} of {path} failed: {reason} ({name}, errno {errno})")
        self.path = path
        self.operation = operation
        self.errno = errno
        self.reason = reason

    @property
    def is_fatal(self) -> bool:
        """A sync failed. Never retry it: the kernel may have dropped the pages and the error."""
        return self.operation in ("fdatasync", "fsync", "syncfs")

    @property
    def is_missing(self) -> bool:
        """The file or directory, or a parent of it, does not exist."""
        return self.errno in (errno_names.ENOENT, errno_names.ENOTDIR)

    @property
    def is_unreadable(self) -> bool:
        """The disk cannot read this place; other places may be readable."""
        return self.errno in _UNREADABLE

    @property
    def is_forbidden(self) -> bool:
        """This user lacks the permission."""
        return self.errno in (errno_names.EACCES, errno_names.EPERM)

    @property
    def is_disk_full(self) -> bool:
        """The disk is full: new messages are refused with an error that clients retry."""
        return self.errno in (errno_names.ENOSPC, errno_names.EDQUOT)


class FreedPositionError(StorageError):
    """A log position was freed: nothing refers to it any longer, except a read that began before.

    Args:
        pos: the log position.
        start_pos: where the log begins now.
    """

    def __init__(self, pos: int, start_pos: int) -> None:
        super().__init__(
            Path("commitlog"),
            "read",
            errno_names.ESTALE,
            f"log position {pos} was freed; the log begins at {start_pos}",
        )
        self.pos = pos
        self.start_pos = start_pos


class UnappliedChangeError(LatermqError):
    """An error occurred after a frame was appended and before it was applied to memory.

    The process ends without writing the frame. Its own log has the error that caused this.

    Args:
        unapplied_pos: log position of the frame, or the end of the log when the change began.
        wrote_pos: the end of the log in memory.
    """

    def __init__(self, unapplied_pos: int, wrote_pos: int) -> None:
        super().__init__(
            f"the change at log position {unapplied_pos} was appended but not applied, so memory, "
            f"up to position {wrote_pos}, differs from the log; nothing more is written, and the "
            "next start recovers from what was written before"
        )
        self.unapplied_pos = unapplied_pos
        self.wrote_pos = wrote_pos


class DataDirectoryLockedError(LatermqError):
    """Another process uses the data directory.

    Args:
        directory: the data directory.
        pid: process id of its holder, None if unknown.
        is_read: the holders are commands that only read, and keep brokers out while they do.
    """

    def __init__(self, directory: Path, pid: int | None, *, is_read: bool = False) -> None:
        holder = "another latermq" if pid is None else f"another latermq (pid {pid})"
        message = f"{holder} holds {directory}; stop it or use another --data-dir"
        if is_read:
            message = f"latermq check or dump is reading {directory}; wait until it is done"
        super().__init__(message)
        self.directory = directory
        self.pid = pid
        self.is_read = is_read


class WorkError(LatermqError):
    """Work that may take long must be done on a thread first; then repeat the call.

    Args:
        run: does it; may run on any thread.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__("a batch must be unpacked on a thread")
        self.run = run


class ColdFrameError(LatermqError):
    """A frame must be read from the disk first; then repeat the call.

    Args:
        place: its log position, or (partition handle, offset) if its unit must be read too.
    """

    def __init__(self, place: int | tuple[int, int]) -> None:
        what = (
            f"the frame at log position {place}"
            if isinstance(place, int)
            else f"the unit of offset {place[1]} of partition handle {place[0]}"
        )
        super().__init__(f"{what} is not in memory")
        self.place = place


class RoleError(LatermqError):
    """A node of a pair is asked for something that the other role does."""


class ReplicaError(LatermqError):
    """A slave cannot follow its master: what it got is not the continuation of its log."""


class CoordinatorError(LatermqError):
    """The coordinator of a pair did not do what it was asked, or what it did is not known.

    Attributes:
        is_refused: it answered that it did not do it, and never will.
    """

    def __init__(self, message: str, *, is_refused: bool) -> None:
        super().__init__(message)
        self.is_refused = is_refused


class NotReadyError(LatermqError):
    """The broker is starting or stopping; the same call works later."""


class SegmentFreedError(LatermqError):
    """A running broker freed a segment while a command read it."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"the broker freed {path} while it was read: run the command again, or run it on a "
            "snapshot (latermq snapshot create)"
        )
        self.path = path


class UnreachableError(LatermqError):
    """No broker answers at an address; the message names it and says what to try."""
