"""Requests as bytes, and a plain socket that sends them.

Each function returns a whole request with its size, in one version whose answer is easy to read.
What is wrong with a request is wrong on purpose.
"""

import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

CLIENT_ID: Final = b"attack"
LIMIT_S: Final = 60.0

Partitions = Mapping[str, Sequence[int]]
"""Topic -> partitions."""


def framed(key: int, version: int, body: bytes, *, tags: bytes | None = None) -> bytes:
    """A request; `tags` are the tagged fields of its header if its version is flexible."""
    header = struct.pack(">hhih", key, version, 1, len(CLIENT_ID)) + CLIENT_ID + (tags or b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def octets(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def array(items: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def uvarint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def produce(batches: Mapping[str, Mapping[int, bytes]], *, acks: int = -1) -> bytes:
    """Produce, version 7, which may have Zstandard: topic -> partition -> batch."""
    topics = [
        string(topic)
        + array([struct.pack(">i", index) + octets(batch) for index, batch in of.items()])
        for topic, of in batches.items()
    ]
    return framed(0, 7, struct.pack(">hhi", -1, acks, 30_000) + array(topics))


def fetch(
    partitions: Partitions,
    offset: int = 0,
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    size: int,
    offsets: Mapping[str, int] | None = None,
) -> bytes:
    """Fetch, version 4, of `size` bytes at most from `offset` on, or where `offsets` says."""
    head = struct.pack(">iiiib", -1, wait_ms, min_bytes, size, 0)
    begins = {topic: (offsets or {}).get(topic, offset) for topic in partitions}
    topics = [
        string(topic)
        + array([struct.pack(">iqi", index, begins[topic], size) for index in indexes])
        for topic, indexes in partitions.items()
    ]
    return framed(1, 4, head + array(topics))


def fetch_with_tag(topic: str, offset: int, *, wait_ms: int, tag_size: int) -> bytes:
    """Fetch, version 12, of one partition with an unknown tagged field of `tag_size` bytes."""
    # Replica, wait, bytes at least and at most, isolation level, no session.
    head = struct.pack(">iiiibii", -1, wait_ms, 1 << 30, 1 << 20, 0, 0, -1)
    # Partition, leader epoch, offset, epoch of the last record, log start, size.
    part = struct.pack(">iiqiqi", 0, -1, offset, -1, -1, 1 << 20) + b"\0"
    name = uvarint(len(topic) + 1) + topic.encode()
    body = head + b"\x02" + name + b"\x02" + part + b"\0" + b"\x01" + b"\x01"
    tags = b"\x01" + uvarint(9_999) + uvarint(tag_size) + bytes(tag_size)
    return framed(1, 12, body + tags, tags=b"\0")


def list_offsets(partitions: Partitions, time_ms: int) -> bytes:
    """ListOffsets, version 1: the first record of each partition from a time on."""
    topics = [
        string(topic) + array([struct.pack(">iq", index, time_ms) for index in indexes])
        for topic, indexes in partitions.items()
    ]
    return framed(2, 1, struct.pack(">i", -1) + array(topics))


def metadata(topics: Sequence[str] | None) -> bytes:
    """Metadata, version 4, which creates topics; None asks for all there are."""
    names = struct.pack(">i", -1) if topics is None else array([string(name) for name in topics])
    return framed(3, 4, names + b"\x01")


def offset_commit(group: str, offsets: Mapping[str, Sequence[int]], note: str) -> bytes:
    """OffsetCommit, version 2, of offset 1 with a note for each partition."""
    head = string(group) + struct.pack(">i", -1) + string("") + struct.pack(">q", -1)
    topics = [
        string(topic) + array([struct.pack(">iq", index, 1) + string(note) for index in indexes])
        for topic, indexes in offsets.items()
    ]
    return framed(8, 2, head + array(topics))


def offset_fetch(group: str, partitions: Partitions | None) -> bytes:
    """OffsetFetch, version 2; None asks for all there are."""
    if partitions is None:
        return framed(9, 2, string(group) + struct.pack(">i", -1))
    topics = [
        string(topic) + array([struct.pack(">i", index) for index in indexes])
        for topic, indexes in partitions.items()
    ]
    return framed(9, 2, string(group) + array(topics))


def join_group(group: str, instance: str, metadata_of: bytes, *, wait_ms: int) -> bytes:
    """JoinGroup, version 5, of a static member that has no member id yet."""
    times = struct.pack(">ii", 1_800_000, wait_ms)
    who = string(group) + times + string("") + string(instance) + string("consumer")
    return framed(11, 5, who + array([string("range") + octets(metadata_of)]))


def sync_group(group: str, instance: str, member: str, generation: int) -> bytes:
    """SyncGroup, version 3, with an empty assignment for everybody."""
    who = string(group) + struct.pack(">i", generation) + string(member) + string(instance)
    return framed(14, 3, who + array([]))


def describe_groups(groups: Sequence[str]) -> bytes:
    """DescribeGroups, version 0."""
    return framed(15, 0, array([string(name) for name in groups]))


def api_versions() -> bytes:
    """ApiVersions, version 0."""
    return framed(18, 0, b"")


def create_topics(counts: Mapping[str, int], settings: Mapping[str, str] | None = None) -> bytes:
    """CreateTopics, version 2: topic -> number of partitions."""
    of = array([string(name) + string(value) for name, value in (settings or {}).items()])
    topics = [
        string(name) + struct.pack(">ih", count, 1) + array([]) + of
        for name, count in counts.items()
    ]
    return framed(19, 2, array(topics) + struct.pack(">ib", 30_000, 0))


def describe_configs(resources: Iterable[tuple[int, str]]) -> bytes:
    """DescribeConfigs, version 1: all settings of resources by type (2: topic) and name."""
    each = [struct.pack(">b", kind) + string(name) + b"\xff" * 4 for kind, name in resources]
    return framed(32, 1, array(each) + b"\0")


def describe_producers(topic: str, partitions: Sequence[int]) -> bytes:
    """DescribeProducers, version 0."""
    indexes = b"".join(struct.pack(">i", index) for index in partitions)
    of_topic = uvarint(len(topic) + 1) + topic.encode() + uvarint(len(partitions) + 1) + indexes
    return framed(61, 0, b"\x02" + of_topic + b"\0" + b"\0", tags=b"\0")


class Wire:
    """A connection that counts what it sends.

    Attributes:
        sent_bytes: so far.
    """

    def __init__(
        self, address: str, *, limit_s: float = LIMIT_S, receive_bytes: int = 0, source: str = ""
    ) -> None:
        """Connect to HOST:PORT.

        Args:
            address: HOST:PORT.
            limit_s: of each wait.
            receive_bytes: size of the kernel's buffer, if given.
            source: the local address, if given.
        """
        host, port = address.rsplit(":", 1)
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(limit_s)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent_bytes = 0

    def send(self, data: bytes) -> None:
        """Send all of it, or raise OSError."""
        with memoryview(data) as view:
            done = 0
            while done < len(data):
                count = self.socket.send(view[done : done + (1 << 16)])
                self.sent_bytes += count
                done += count

    def receive(self) -> bytes:
        """The next answer, without its size and correlation id."""
        size = int.from_bytes(self._exactly(4), "big")
        return self._exactly(size)[4:]

    def ask(self, request: bytes) -> bytes:
        self.send(request)
        return self.receive()

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return bytes(data)
