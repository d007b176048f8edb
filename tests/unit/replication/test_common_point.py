"""The common point of two logs, case by case."""

from dataclasses import dataclass

import pytest

from appliance.replication.common_point import LogFacts, Relation, find_common_point
from appliance.replication.logs import NO_POS

CRC = 77


@dataclass(frozen=True)
class Case:
    """Two logs, and where they part.

    Attributes:
        master, slave: start, end, and epochs with their starts.
        last_pos: of the slave's last frame; 8 below its end if left.
        crc: of the master's frame there.
    """

    name: str
    master: tuple[int, int, tuple[tuple[int, int], ...]]
    slave: tuple[int, int, tuple[tuple[int, int], ...]]
    relation: Relation
    pos: int
    last_pos: int | None = None
    crc: int | None = CRC


FOLLOWS, DIVERGED, CONFLICT = Relation.FOLLOWS, Relation.DIVERGED, Relation.CONFLICT
AHEAD, ANEW = Relation.AHEAD, Relation.ANEW

TWO = ((11, 0), (13, 500))

CASES = (
    Case("equal", (0, 900, TWO), (0, 900, TWO), FOLLOWS, 900),
    Case("behind in the last epoch", (0, 900, TWO), (0, 600, TWO), FOLLOWS, 600),
    Case("behind by an epoch", (0, 900, TWO), (0, 300, ((11, 0),)), FOLLOWS, 300),
    Case("ends where an epoch begins", (0, 900, TWO), (0, 500, ((11, 0),)), FOLLOWS, 500),
    Case("diverged by an epoch", (0, 900, TWO), (0, 700, ((11, 0),)), DIVERGED, 500),
    Case(
        "diverged, and freed its head: what it carried is in the tail",
        (0, 900, TWO),
        (300, 700, ((11, 0),)),
        Relation.ANEW,
        0,
    ),
    Case("both began one", (0, 900, TWO), (0, 700, ((11, 0), (12, 400))), DIVERGED, 400),
    Case("both began one, later", (0, 900, TWO), (0, 800, ((11, 0), (12, 600))), DIVERGED, 500),
    Case(
        "diverged two epochs ago",
        (0, 900, ((11, 0), (13, 300), (15, 600))),
        (0, 900, ((11, 0), (12, 200), (14, 400))),
        DIVERGED,
        200,
    ),
    Case("ahead in one epoch", (0, 900, TWO), (0, 950, TWO), AHEAD, 900),
    Case("another frame", (0, 900, TWO), (0, 700, TWO), CONFLICT, 500, crc=CRC + 1),
    Case("no frame there", (0, 900, TWO), (0, 700, TWO), CONFLICT, 500, crc=None),
    Case("another frame at the end", (0, 900, TWO), (0, 900, TWO), CONFLICT, 500, crc=CRC + 1),
    Case("another frame, ahead", (0, 900, TWO), (0, 999, TWO), AHEAD, 900, crc=CRC + 1),
    Case("another frame in the first", (0, 900, ((11, 0),)), (0, 700, ((11, 0),)), ANEW, 0, crc=1),
    Case("empty", (0, 900, TWO), (0, 0, ()), ANEW, 0, last_pos=NO_POS),
    Case("empty, master freed", (512, 900, TWO), (0, 0, ()), ANEW, 512, last_pos=NO_POS),
    Case("both empty", (0, 0, ()), (0, 0, ()), ANEW, 0, last_pos=NO_POS),
    Case("below the start", (512, 900, ((13, 512),)), (0, 400, ((11, 0),)), ANEW, 512),
    Case("up to the start", (512, 900, ((13, 512),)), (0, 512, TWO), ANEW, 512),
    Case("a little above it", (512, 900, ((13, 512),)), (0, 600, TWO), FOLLOWS, 600),
    Case("the master kept more", (0, 900, TWO), (512, 700, ((13, 512),)), FOLLOWS, 700),
    Case(
        "parted below the slave's start",
        (0, 900, TWO),
        (600, 900, ((12, 600),)),
        ANEW,
        0,
    ),
    Case("nothing in common", (0, 900, ((13, 0),)), (0, 900, ((12, 0),)), ANEW, 0),
    Case("one epoch, two starts", (0, 900, TWO), (0, 900, ((11, 0), (13, 400))), DIVERGED, 400),
    Case("only the newest epochs", (0, 900, TWO), (0, 700, ((13, 500),)), FOLLOWS, 700),
    Case("only a head", (0, 900, TWO), (0, 208, ()), ANEW, 0, last_pos=0),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_two_logs_part_where_the_table_says(case: Case) -> None:
    last_pos = case.slave[1] - 8 if case.last_pos is None else case.last_pos
    asked = []

    def crc_at(pos: int) -> int | None:
        asked.append(pos)
        return case.crc

    found = find_common_point(
        LogFacts(*case.master),
        LogFacts(*case.slave),
        last_pos=last_pos,
        last_crc=CRC,
        crc_at=crc_at,
    )
    assert (found.relation, found.pos) == (case.relation, case.pos)
    assert asked in ([], [last_pos])
    assert case.master[0] <= found.pos <= case.master[1]
