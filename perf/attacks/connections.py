"""Attacks with connections: the admin address, open files, and lines of the log."""

import itertools
import os
import socket
from contextlib import suppress
from typing import Final

from perf.attacks import batches, requests
from perf.attacks.arena import Arena

FEW_FILES: Final = 512
FEW_FILES_CONFIG: Final = """\
[store]
segment_size_bytes = 4_194_304
[limits]
decompressed_size_max_bytes = 262_144
batch_size_max_bytes = 262_144
request_decompressed_size_max_bytes = 262_144
record_size_max_bytes = 262_144
header_size_max_bytes = 262_144
[delay]
delivery_batch_max_bytes = 262_144
[groups]
size_max_bytes = 262_144
[disk]
refuse_percent = 100
"""
MALFORMED: Final = 1_458


def admin_heads(arena: Arena) -> None:
    """40 admin connections with unfinished heads of 8,000 headers of 4 KB: 32 MB each."""
    lines = b"".join(b"X-%d: %s\r\n" % (index, b"v" * 4_000) for index in range(8_000))
    head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + lines

    def send(_: int) -> None:
        arena.connect(arena.broker.admin, limit_s=arena.seconds).send(head)

    arena.side_by_side(40, send)
    arena.linger()


def prepare_admin(arena: Arena) -> None:
    """A topic of 1,000 partitions and 1,000 others."""
    arena.create_topics(["wide"], 1_000)
    arena.create_topics([f"listed-{number}" for number in range(1_000)], 1)


def admin_unread(arena: Arena) -> None:
    """40 admin connections that ask for topics 200 times each and read nothing: 400 KB."""
    paths = ("/api/v1/topics/wide", "/api/v1/topics")
    requests_ = b"".join(
        b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path.encode() for path in paths
    )
    for _ in range(40):
        wire = arena.connect(arena.broker.admin, limit_s=2, receive_bytes=4_096)
        with suppress(OSError):
            wire.send(requests_ * 100)
    arena.linger()


def find(arena: Arena) -> None:
    """50 admin connections that look for keys that do not exist, one after the other."""

    def look(index: int) -> None:
        wire = arena.connect(arena.broker.admin, limit_s=arena.seconds + 5)
        for number in itertools.count():
            if arena.is_over:
                break
            path = f"/api/v1/find?key=none-{index}-{number}&limit=1000"
            wire.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            wire.socket.recv(65_536)

    arena.side_by_side(50, look)


def prepare_rolls(arena: Arena) -> None:
    """A topic to fill segments with."""
    arena.create_topics(["rolling"], 1)


def use_up_files(arena: Arena) -> None:
    """2,000 connections to a broker that may open 512 files, then new segments."""
    writer = arena.connect()
    for _ in range(2_000):
        with suppress(OSError):
            arena.connect(limit_s=2)
    batch = batches.plain([bytes(200_000)])
    for _ in range(60):
        writer.ask(requests.produce({"rolling": {0: batch}}))
    answered = 0
    with suppress(OSError):
        arena.ask(requests.api_versions())
        answered = 1
    arena.notes.append(f"three segments, a further connection is served: {bool(answered)}")
    arena.linger()


def malformed(arena: Arena) -> None:
    """1,458 connections with a malformed request each, while nobody reads standard error."""
    junk = requests.framed(18, 0, b"") + b"\x7f\xff\xff\xff" + os.urandom(60)
    for _ in range(MALFORMED):
        wire = arena.connect(limit_s=5)
        with suppress(OSError):
            wire.send(junk)
            wire.socket.shutdown(socket.SHUT_WR)
            while wire.socket.recv(4_096):
                pass
        arena.close(wire)
    arena.linger()
