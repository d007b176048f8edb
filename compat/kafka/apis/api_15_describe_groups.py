"""DescribeGroups (key 15): v0-6.

Behaviour: returns state, protocol and members of each requested group. Protocol, metadata and
assignments are included only while the group is stable, as in Kafka. A missing group is "Dead", and
from version 6 on it gets GROUP_ID_NOT_FOUND with a message.

Deviations:
- Authorized operations (v3+) are always unknown.
- A group that is named more than once is answered once.

Versions: 1 throttle time; 2 as 1; 3 authorized operations; 4 static members; 5 flexible; 6 error
message.
Layer 4; does no I/O.
"""

from functools import partial
from typing import Final

from compat.kafka.configs.entries import shown
from compat.kafka.groups.group import GroupState
from compat.kafka.groups.member import Member
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.named_items import each_once
from compat.kafka.protocol.needs import of_groups, on_slave
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import InPieces, Items

_FIRST_VERSION_WITH_NOT_FOUND: Final = 6


def _refuse(error: ErrorCode, node: Node, version: int, request: Fields) -> InPieces:
    groups = dict.fromkeys(request["groups"])
    nothing = {"group_state": "", "protocol_type": "", "protocol_data": "", "members": ()}
    refused = (
        {"group_id": group, "error_code": error, "error_message": None, **nothing}
        for group in groups
    )
    return InPieces({"groups": refused})


_NEEDS: Final = Needs(
    of_groups(lambda request: request["groups"]),
    partial(_refuse, ErrorCode.coordinator_load_in_progress),
)

_ON_SLAVE: Final = on_slave(ErrorCode.not_coordinator, lambda code: partial(_refuse, code))


@handles(
    key=15,
    name="DescribeGroups",
    versions=(0, 6),
    flexible_from=5,
    needs=_NEEDS,
    on_slave=_ON_SLAVE,
)
def describe_groups(node: Node, version: int, request: Fields) -> InPieces:
    """Return the state and the members of groups."""
    # Each group once, so that a small request cannot cause a response of any size.
    return InPieces({"groups": _describe_each(node, version, request["groups"])})


def _describe_each(node: Node, version: int, asked: list[str]) -> Items:
    for group_id in each_once(asked):
        yield group_id if isinstance(group_id, int) else _describe(node, version, group_id)


def _describe(node: Node, version: int, group_id: str) -> Fields:
    group = node.groups.find(group_id)
    if group is None:
        is_saved = version >= _FIRST_VERSION_WITH_NOT_FOUND
        return {
            "error_code": ErrorCode.group_id_not_found if is_saved else ErrorCode.none,
            "error_message": f"Group {shown(group_id)[1:-1]} not found." if is_saved else None,
            "group_id": group_id,
            "group_state": GroupState.DEAD.value,
            "protocol_type": "",
            "protocol_data": "",
            "members": (),
        }
    is_stable = group.state is GroupState.STABLE
    # As they are now: in a later slice the group may have another generation.
    members = [
        (each, group.metadata_of(each), each.assignment) if is_stable else (each, b"", b"")
        for each in group.members.values()
    ]
    return {
        "error_code": ErrorCode.none,
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol or "") if is_stable else "",
        "members": (_describe_member(*each) for each in members),
    }


def _describe_member(member: Member, metadata: bytes, assignment: bytes) -> Fields:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        # Kafka's tools show addresses with this slash.
        "client_host": f"/{member.client_host}",
        "member_metadata": metadata,
        "member_assignment": assignment,
    }
