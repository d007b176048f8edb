"""Up to where the logs of a master and a slave are equal.

As in Kafka and in RocketMQ's controller, the lists of epochs say it: no epoch is ever begun by two
nodes, so what both have of one epoch is equal, and everything before it as well. The common point
is the smaller end of the last epoch that both have. The CRC of the slave's last frame must confirm
it. Layer 3; does no I/O.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from appliance.replication.logs import NO_POS

Epochs: TypeAlias = Sequence[tuple[int, int]]
"""Epochs and where they begin, both ascending."""


class Relation(Enum):
    """How the slave's log relates to the master's."""

    FOLLOWS = "the slave has nothing that the master lacks"
    DIVERGED = "the slave has frames that the master lacks, and truncates"
    CONFLICT = "both have an epoch with other frames in it; the slave truncates to its start"
    AHEAD = "the slave has the end of the master's own epoch, which the master lost"
    ANEW = "the logs share nothing, and the slave starts anew"


@dataclass(frozen=True, slots=True)
class LogFacts:
    """One of the two logs.

    Attributes:
        end_pos: of its last whole frame; `start_pos` if it is empty.
        epochs: those with frames in it; at a slave perhaps the newest ones alone.
    """

    start_pos: int
    end_pos: int
    epochs: Epochs


@dataclass(frozen=True, slots=True)
class CommonPoint:
    """Where the stream begins.

    Attributes:
        pos: up to there the logs are equal; the start of the master's log if they share nothing.
    """

    pos: int
    relation: Relation


def find_common_point(
    master: LogFacts,
    slave: LogFacts,
    *,
    last_pos: int,
    last_crc: int,
    crc_at: Callable[[int], int | None],
) -> CommonPoint:
    """Compare two logs of one cluster; costs the length of the lists.

    If the slave's last frame is another one in the master's log, then two nodes wrote in one epoch,
    which must not happen, or one of the logs is damaged. The epoch cannot be trusted then, and the
    common point is its start.

    Args:
        last_pos, last_crc: of the slave's last frame; NO_POS and 0 if its log is empty.
        crc_at: returns the CRC of the master's frame at a position, None if there is none.
    """
    anew = CommonPoint(pos=master.start_pos, relation=Relation.ANEW)
    lowest_pos = max(master.start_pos, slave.start_pos)
    index = _last_common(master.epochs, slave.epochs, lowest_pos)
    if index is None or last_pos == NO_POS:
        return anew
    in_master, in_slave = index
    pos = min(_end_of(master, in_master), _end_of(slave, in_slave))
    if pos <= lowest_pos:
        return anew
    if lowest_pos <= last_pos < pos and crc_at(last_pos) != last_crc:
        epoch_pos = master.epochs[in_master][1]
        if epoch_pos <= lowest_pos or slave.start_pos > master.start_pos:
            return anew
        return CommonPoint(pos=epoch_pos, relation=Relation.CONFLICT)
    if pos == slave.end_pos:
        return CommonPoint(pos=pos, relation=Relation.FOLLOWS)
    is_masters_last = in_master == len(master.epochs) - 1
    is_slaves_last = in_slave == len(slave.epochs) - 1
    relation = Relation.AHEAD if is_masters_last and is_slaves_last else Relation.DIVERGED
    if relation is Relation.DIVERGED and slave.start_pos > master.start_pos:
        # What lived on in the head that the slave freed is in the tail that it would lose.
        return anew
    return CommonPoint(pos=pos, relation=relation)


def _last_common(master: Epochs, slave: Epochs, lowest_pos: int) -> tuple[int, int] | None:
    """Return where the last common epoch is in both lists.

    Below the start of one of the logs nothing is compared, so the epochs that began there count as
    if they began with it.
    """
    places = {(epoch, max(start, lowest_pos)): index for index, (epoch, start) in enumerate(slave)}
    for index in reversed(range(len(master))):
        epoch, start = master[index]
        found = places.get((epoch, max(start, lowest_pos)))
        if found is not None:
            return index, found
    return None


def _end_of(log: LogFacts, index: int) -> int:
    return log.epochs[index + 1][1] if index + 1 < len(log.epochs) else log.end_pos
