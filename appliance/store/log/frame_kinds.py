"""Names of the frame kinds, and the errors of frames: none, and a newer version.

Layer 2; does no I/O.
"""

from pathlib import Path
from typing import Final

from _core.bytes import layout
from _core.bytes.layout import (
    AT_VERSION,
    FLAGS_BINDING,
    FLAGS_READ,
    FORMAT_VERSION,
    FRAME_FLAG_CONTROL,
    KIND_CARRY,
    KINDS_READ,
)
from _core.log.frames import read_header
from appliance.errors import FormatVersionError

WHOLE: Final = "whole"
"""The result of `_core.log.frames.check` for an intact frame."""

KIND_NAMES: Final = {
    number: name.removeprefix("KIND_").lower().replace("_", " ")
    for number, name in sorted(
        (number, name) for name, number in vars(layout).items() if name.startswith("KIND_")
    )
}
"""As in docs/FORMAT.md, including those that this version does not read."""


def kind_name(kind: int) -> str:
    """Return the name of a kind, or its number if it has none."""
    return KIND_NAMES.get(kind, f"kind {kind}")


def newer_frame_error(path: Path, offset: int, header: bytes) -> FormatVersionError:
    """Return the error for a frame that `_core.log.frames.check_frame` reports as newer.

    Args:
        path: the segment.
        offset: of the frame in the file, in bytes.
        header: the bytes of the frame's header.
    """
    fields = read_header(header)
    flags = fields["flags"] & FLAGS_BINDING & ~FLAGS_READ
    if header[AT_VERSION] > FORMAT_VERSION:
        found = f"a frame of format version {header[AT_VERSION]}"
        known = f"reads version {FORMAT_VERSION} and below"
    elif flags:
        found = f"a frame with flags {flags:#04x}"
        known = "does not know these flags"
    elif not KINDS_READ >> fields["kind"] & 1:
        name = KIND_NAMES.get(fields["kind"])
        found = f"a frame of kind {fields['kind']}" + (f", {name}," if name else "")
        known = "does not know that kind"
    elif fields["flags"] & FRAME_FLAG_CONTROL and fields["kind"] != KIND_CARRY:
        found = "a frame with the flag control that is no carry frame"
        known = "does not know that kind"
    else:
        found = "a frame with an entry of an unknown kind in its tables"
        known = "does not know that entry"
    return FormatVersionError(path, offset, found=found, known=known)
