"""Which node of a pair is the master, as this directory knows it, and since which term. Layer 2.

The file `role` in the data directory, which decides over the configuration once it exists:

    latermq role 1
    term 3
    role master
    peer 10.0.0.2:9292
    yielded no
    crc 5f0e6c1a

A term is the time of one master. Each promotion and each hand-over begins a higher one, and the
node that begins it writes it here, durably, before it serves anybody. Terms of node 1 are odd and
those of node 2 even, so the nodes never begin the same one. The CRC covers the lines before it.

The file is written beside and renamed: after a crash there is the old one or the new one.
"""

import contextlib
import logging
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

from appliance.config.config import Config
from appliance.config.setting import Address, read_address
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths
from appliance.system.files import FileSystem

SIZE_MAX_BYTES: Final = 1_024
TERM_MAX: Final = (1 << 62) - 1
NO_TERM: Final = 0
NO_PEER: Final = "none"

_log = logging.getLogger(__name__)

_FIRST_LINE: Final = "latermq role 1"
_NAMES: Final = ("term", "role", "peer", "yielded")
_EXPECTED: Final = "a role file of latermq with its CRC"


@dataclass(frozen=True, slots=True)
class RoleRecord:
    """What the file says.

    Attributes:
        term: the newest term that this node knows; NO_TERM before it knows one.
        is_master: this node is the master of that term.
        peer: where the other node was last known to replicate; None if it never was.
        has_yielded: this node was the master before, handed over, and does not know yet whether the
            other node took over.
    """

    term: int = NO_TERM
    is_master: bool = True
    peer: Address | None = None
    has_yielded: bool = False


def next_term(term: int, node: int) -> int:
    """Return the first term above another one that a node may begin.

    Args:
        term: the newest known one.
        node: 1 or 2.
    """
    assert node in (1, 2)
    return term + 1 + ((term + 1) % 2 != node % 2)


class RoleFile:
    """The role of one node, in memory and on its disk.

    Attributes:
        record: what is in force. It is on the disk if the node is of a pair and has served, or has
            followed a master.
    """

    def __init__(self, fs: FileSystem, paths: DataPaths, config: Config) -> None:
        """Touch no file yet.

        Args:
            fs, paths: the data directory.
            config: says which role the node has before there is a file.
        """
        self._fs, self._paths, self._config = fs, paths, config
        self.record = RoleRecord()

    @property
    def is_member(self) -> bool:
        """This node has a slave, or is one: a broker without a pair compares with nobody."""
        return self._config.replication != "none" or not self.record.is_master

    @property
    def is_slave(self) -> bool:
        """A start follows the other node. One that yielded compares first."""
        return not (self.record.is_master or self.record.has_yielded)

    @property
    def configured_peer(self) -> Address | None:
        """Where the other node replicates, if the configuration says so."""
        return self._config.master or self._config.peer

    @property
    def peer(self) -> Address | None:
        """Where the other node replicates: as configured, else as last known."""
        return self.configured_peer or self.record.peer

    def read(self) -> RoleRecord:
        """Set `record` to what counts at a start, and return it.

        Raises:
            StorageError: the file could not be read.
            CorruptionError: it is no role file, or damaged.
        """
        config = self._config
        found = read_role(self._fs, self._paths)
        if found is None:
            found = RoleRecord(is_master=config.role != "slave", peer=config.master)
        elif found.is_master != (config.role == "master"):
            _log.info(
                "is the %s of term %d, as its role file says; replication.role = %s counts no more",
                "master" if found.is_master else "slave",
                found.term,
                config.role,
            )
        self.record = found
        return found

    def change(self, **changes: Any) -> None:
        """Write a changed record durably, then let it count.

        Raises:
            StorageError: it could not be written; the old one counts.
        """
        record = replace(self.record, **changes)
        if record != self.record:
            self.put(record)

    def begin(self, node: int) -> None:
        """Be the master of a new term, durably, if there is none, or if this node yielded it.

        Args:
            node: 1 or 2; 0 for a broker that is of no pair.

        Raises:
            StorageError: it could not be written.
        """
        record = self.record
        if record.has_yielded or (self.is_member and record.term == NO_TERM):
            self.change(term=next_term(record.term, node), is_master=True, has_yielded=False)

    def put(self, record: RoleRecord) -> None:
        """Write a record durably, then let it count.

        Raises:
            StorageError: it could not be written; the old one counts.
        """
        write_role(self._fs, self._paths, record)
        self.record = record


def read_role(fs: FileSystem, paths: DataPaths) -> RoleRecord | None:
    """Return what the file says; None if there is none.

    Raises:
        StorageError: it could not be read.
        CorruptionError: it is no role file, or damaged.
    """
    try:
        with contextlib.closing(fs.open(paths.role, writable=False)) as file:
            data = file.pread(SIZE_MAX_BYTES + 1, 0)
    except StorageError as error:
        if error.is_missing:
            return None
        raise
    record = _decode(data)
    if record is None:
        raise CorruptionError(paths.role, 0, _EXPECTED, f"{data[:100]!r}")
    return record


def write_role(fs: FileSystem, paths: DataPaths, record: RoleRecord) -> None:
    """Replace the file durably.

    Raises:
        StorageError: it failed; after a crash there is the old file or the new one.
    """
    data = _encode(record)
    with contextlib.closing(fs.open(paths.new_role, create=True)) as file:
        file.truncate(len(data))
        file.pwritev([data], 0)
        file.fdatasync()
    fs.rename(paths.new_role, paths.role)
    fs.sync_dir(paths.root)


def _encode(record: RoleRecord) -> bytes:
    assert 0 <= record.term <= TERM_MAX
    values = (
        record.term,
        "master" if record.is_master else "slave",
        record.peer or NO_PEER,
        "yes" if record.has_yielded else "no",
    )
    lines = [_FIRST_LINE, *(f"{name} {value}" for name, value in zip(_NAMES, values, strict=True))]
    text = "".join(f"{line}\n" for line in lines).encode()
    return text + b"crc %08x\n" % crc32(text)


def _decode(data: bytes) -> RoleRecord | None:
    """Return the record if the bytes are exactly what `_encode` writes for it."""
    try:
        values = dict(line.split(" ", 1) for line in data.decode("ascii").splitlines()[1:])
        peer = None if values["peer"] == NO_PEER else read_address(values["peer"])
        record = RoleRecord(
            term=int(values["term"]),
            is_master=values["role"] == "master",
            peer=peer,
            has_yielded=values["yielded"] == "yes",
        )
        return record if 0 <= record.term <= TERM_MAX and _encode(record) == data else None
    except (ValueError, KeyError):
        return None
