"""A frame of which only some parts are read. Layer 2; belongs to one thread at a time."""

from appliance.errors import StorageError
from appliance.system.files import File


class FrameParts:
    """One frame, unchecked: its checksum covers all of it.

    Args:
        file: a segment.
        offset: where the frame begins in it.
        first: what was read of it, its header at least.
        size: of the frame, bytes.
    """

    __slots__ = ("_file", "_offset", "first", "size")

    def __init__(self, file: File, offset: int, first: bytes, size: int) -> None:
        self._file = file
        self._offset = offset
        self.first = first
        self.size = size

    def read(self, at: int, size: int) -> bytes:
        """Read a part.

        Args:
            at: where it begins, from the begin of the frame on.
            size: of it, bytes.

        Raises:
            ValueError: it is not within the frame, or cannot be read.
        """
        end = at + size
        if not 0 <= at <= end <= self.size:
            raise ValueError(f"{size} bytes at {at} are not in a frame of {self.size} bytes")
        if end <= len(self.first):
            return self.first[at:end]
        try:
            found = self._file.pread(size, self._offset + at)
        except StorageError as error:
            raise ValueError(str(error)) from error
        if len(found) < size:
            raise ValueError(f"the segment ends {size - len(found)} bytes too soon")
        return found
