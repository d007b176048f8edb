"""Groups that change at random, as a coordinator changes them and as it never does."""

import random
from dataclasses import replace
from typing import Final

from appliance.store.state.group_frames import (
    GROUP_SAVED,
    STATE_COMPLETING_REBALANCE,
    STATE_EMPTY,
    STATE_STABLE,
    GroupFrame,
    GroupMember,
)

MEMBERS_MAX: Final = 4
REORDERED_SHARE: Final = 0.05
"""Of changes after which the members have another order, which no coordinator gives them."""


def changed_group(rng: random.Random, group: GroupFrame | None, name: str = "g") -> GroupFrame:
    """Return a group after its next change.

    Args:
        rng: all chance.
        group: as it was; None if there was none.
        name: of the group.
    """
    if group is None:
        group = GroupFrame(op=GROUP_SAVED, group=name)
    members = list(group.members)
    for _ in range(rng.randrange(3)):
        _change_members(rng, members)
    # Two generators with one seed make the same member twice.
    members = list({member.member_id: member for member in members}.values())
    if rng.random() < 0.3:
        members = [replace(member, assignment=b"") for member in members]
    if rng.random() < REORDERED_SHARE:
        rng.shuffle(members)
    state = rng.choice((STATE_COMPLETING_REBALANCE, STATE_STABLE)) if members else STATE_EMPTY
    return replace(
        group,
        state=state,
        generation=group.generation + rng.randrange(2),
        state_ms=rng.choice((group.state_ms, rng.randrange(1, 1 << 40))),
        protocol_type=rng.choice((group.protocol_type, group.protocol_type, None, "consumer")),
        protocol=rng.choice((group.protocol, "range", "")) if members else None,
        leader=rng.choice(members).member_id if members else None,
        members=tuple(members),
    )


def _change_members(rng: random.Random, members: list[GroupMember]) -> None:
    place = rng.randrange(len(members)) if members else 0
    match rng.randrange(6):
        case 0 if members:
            del members[place]
        case 1 if members:
            members[place] = replace(members[place], assignment=rng.randbytes(rng.randrange(9)))
        case 2 if members:
            fresh = _member(rng)
            members[place] = replace(
                members[place], metadata=fresh.metadata, session_timeout_ms=rng.randrange(1_000)
            )
        case 3 if members and members[place].instance_id is not None:
            fresh = _member(rng)
            members[place] = replace(
                members[place], member_id=fresh.member_id, client_host=fresh.client_host
            )
        case _ if len(members) < MEMBERS_MAX:
            members.append(_member(rng))


def _member(rng: random.Random) -> GroupMember:
    return GroupMember(
        member_id=f"m-{rng.randrange(1 << 40)}",
        instance_id=rng.choice((None, f"i-{rng.randrange(1 << 40)}")),
        client_id=rng.choice(("", "c")),
        client_host=rng.choice(("127.0.0.1", "::1")),
        session_timeout_ms=rng.randrange(1_000),
        rebalance_timeout_ms=rng.randrange(1_000),
        metadata=rng.randbytes(rng.randrange(60)),
        assignment=rng.randbytes(rng.choice((0, 20))),
    )
