"""Attacks on consumer groups."""

import struct
from typing import Final

from perf.attacks import requests
from perf.attacks.arena import Arena

GROUPS: Final = 15
METADATA_BYTES: Final = 7_900_000
MEMBERS: Final = 1_000
MEMBER_BYTES: Final = 7_900
REJOINS: Final = 200
REJOIN_MAX_BYTES: Final = 64 << 10
"""Of the log for each rejoin, with the records of the good client meanwhile."""


def _joined(answer: bytes) -> tuple[int, str, int]:
    """Generation, member id and error of the answer to JoinGroup."""
    error, generation = struct.unpack_from(">hi", answer, 4)
    pos = 10
    text = ""
    for _ in range(3):  # protocol, leader, member
        (size,) = struct.unpack_from(">h", answer, pos)
        text = answer[pos + 2 : pos + 2 + size].decode()
        pos += 2 + size
    return generation, text, error


def prepare_large_groups(arena: Arena) -> None:
    """15 groups whose one member has metadata of 7.9 MB: about what one address may have."""
    wires = [arena.connect() for _ in range(GROUPS)]

    def join(index: int) -> None:
        group, wire = f"large-{index}", wires[index]
        request = requests.join_group(group, "member", bytes(METADATA_BYTES), wait_ms=60_000)
        generation, member, error = _joined(wire.ask(request))
        if error:
            arena.faults.append(f"JoinGroup: error {error}")
        wire.ask(requests.sync_group(group, "member", member, generation))

    arena.side_by_side(GROUPS, join)


def describe(arena: Arena) -> None:
    """Ten DescribeGroups of 15 large groups each, unread: 340 bytes each."""
    request = requests.describe_groups([f"large-{index}" for index in range(GROUPS)])
    for _ in range(10):
        arena.connect(receive_bytes=4_096).send(request)
    arena.linger()


def prepare_large_group(arena: Arena) -> None:
    """A group of 1,000 static members with metadata of 7.9 KB each."""
    wires = [arena.connect() for _ in range(MEMBERS)]
    for index, wire in enumerate(wires):
        metadata = bytes(MEMBER_BYTES) if index else b"m"
        wire.send(requests.join_group("crowd", f"i{index}", metadata, wait_ms=60_000))
    answers = [_joined(wire.receive()) for wire in wires]
    failed = sum(1 for _, _, error in answers if error)
    if failed:
        arena.faults.append(f"{failed} members could not join")
    for index, wire in enumerate(wires):
        generation, member, _ = answers[index]
        wire.send(requests.sync_group("crowd", f"i{index}", member, generation))
    for wire in wires:
        wire.receive()


def rejoin(arena: Arena) -> None:
    """A static member of a group of 1,000 rejoins 200 times: 80 bytes each."""
    begin = arena.broker.metric("latermq_log_wrote_pos")
    wire = arena.connect()
    request = requests.join_group("crowd", "i0", b"m", wait_ms=60_000)
    for _ in range(REJOINS):
        _, _, error = _joined(wire.ask(request))
        if error:
            arena.faults.append(f"a rejoin was answered with error {error}")
            break
    each = (arena.broker.metric("latermq_log_wrote_pos") - begin) / REJOINS
    arena.notes.append(f"{each:,.0f} B of log for each")
    if each > REJOIN_MAX_BYTES:
        arena.faults.append(f"a rejoin of 80 bytes writes {each:,.0f} B")
