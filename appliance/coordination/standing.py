"""Where a node of a pair stands towards the coordinator, as a table that docs/REPLICATION.md shows.

`FailOver` walks it and knows no other states. Layer 3; does no I/O.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeAlias


class Standing(Enum):
    """Of one node."""

    FOLLOWS = "slave, hears its master"
    MISSES = "slave, does not hear its master"
    TAKES = "slave, asks for the key"
    WITHDRAWS = "slave, gives the key back"
    SUCCEEDS = "slave, has the key, is promoted"
    COMPARES = "master, serves nobody yet"
    HOLDS = "master, has the key"
    LEANS = "master, has no key, hears its slave"
    STOPS = "master, has neither: acknowledges nothing"
    YIELDS = "master, the other node took over"


class Happening(Enum):
    """What changes it."""

    SILENT = "the peer is silent for too long"
    HEARD = "the peer is heard"
    ORDERED = "an operator orders this node to be the master"
    ASKED = "the key is gone, this node may follow: the transaction leaves"
    TAKEN = "the transaction created the key"
    REFUSED = "the transaction did not: somebody else wrote before"
    UNKNOWN = "no answer says what the transaction did"
    REVOKED = "the lease is revoked: nothing of it is done any more"
    LAPSED = "the lease may have ended"
    PROMOTED = "the promotion is done"
    SUPERSEDED = "the other node took the key in a higher term"


Standings: TypeAlias = Mapping[tuple[Standing, Happening], Standing]

SLAVE_STANDINGS: Final[Standings] = {
    (Standing.FOLLOWS, Happening.SILENT): Standing.MISSES,
    (Standing.FOLLOWS, Happening.ORDERED): Standing.MISSES,
    (Standing.MISSES, Happening.HEARD): Standing.FOLLOWS,
    (Standing.MISSES, Happening.ASKED): Standing.TAKES,
    (Standing.TAKES, Happening.TAKEN): Standing.SUCCEEDS,
    (Standing.TAKES, Happening.HEARD): Standing.WITHDRAWS,
    (Standing.TAKES, Happening.REFUSED): Standing.MISSES,
    (Standing.TAKES, Happening.UNKNOWN): Standing.WITHDRAWS,
    (Standing.WITHDRAWS, Happening.REVOKED): Standing.MISSES,
    (Standing.SUCCEEDS, Happening.LAPSED): Standing.WITHDRAWS,
    (Standing.SUCCEEDS, Happening.PROMOTED): Standing.HOLDS,
}
"""A slave that has the key answers its master no more, so it does not hear it either."""

MASTER_STANDINGS: Final[Standings] = {
    (Standing.COMPARES, Happening.HEARD): Standing.LEANS,
    (Standing.COMPARES, Happening.TAKEN): Standing.HOLDS,
    (Standing.COMPARES, Happening.SUPERSEDED): Standing.YIELDS,
    (Standing.LEANS, Happening.TAKEN): Standing.HOLDS,
    (Standing.LEANS, Happening.SILENT): Standing.STOPS,
    (Standing.HOLDS, Happening.LAPSED): Standing.STOPS,
    (Standing.HOLDS, Happening.SUPERSEDED): Standing.YIELDS,
    (Standing.STOPS, Happening.HEARD): Standing.LEANS,
    (Standing.STOPS, Happening.TAKEN): Standing.HOLDS,
    (Standing.STOPS, Happening.SUPERSEDED): Standing.YIELDS,
    (Standing.YIELDS, Happening.HEARD): Standing.LEANS,
    (Standing.YIELDS, Happening.ORDERED): Standing.STOPS,
}
"""A master that loses its key while it hears its slave is in STOPS for no time. One that yields
hears its slave if that one ended before its promotion was done."""

STANDINGS: Final[Standings] = {**SLAVE_STANDINGS, **MASTER_STANDINGS}

SLAVE: Final = frozenset(
    {
        Standing.FOLLOWS,
        Standing.MISSES,
        Standing.TAKES,
        Standing.WITHDRAWS,
        Standing.SUCCEEDS,
    }
)
"""Where a slave stands."""
