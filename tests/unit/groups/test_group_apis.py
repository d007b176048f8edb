"""The requests of groups in every version, as kafka-python encodes and decodes them."""

from typing import Any

import pytest

from _core.paths.answer import Reply
from compat.kafka import dispatch
from compat.kafka.groups.group import Group
from compat.kafka.node import Node
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.configs import small_config
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import ask, decode_response, encode_request
from tests.support.values import group_requests as gr

DELAY_MS = 500


class Call:
    """A request that may be answered later.

    Attributes:
        deferred: what the broker answers through, None if it has answered at once.
    """

    def __init__(self, node: Node, request: Any, version: int, response_class: Any) -> None:
        self._response_class = response_class
        self._version = version
        self._replies: list[Reply] = []
        self.deferred: DeferredResponse[Any] | None = None
        answer = dispatch.answer(node, encode_request(request, version))
        if isinstance(answer, Reply):
            self._replies.append(answer)
        else:
            self.deferred = answer
            answer.when_complete(self._replies.append)

    @property
    def is_answered(self) -> bool:
        return bool(self._replies)

    @property
    def answer(self) -> Any:
        (reply,) = self._replies
        return decode_response(self._response_class, self._version, reply.payload)


@pytest.fixture
def node() -> Node:
    return memory_node(MemoryBroker(small_config(initial_rebalance_delay_ms=DELAY_MS)))


def pass_ms(node: Node, duration_ms: int) -> None:
    """Let time pass."""
    broker = node.broker
    assert isinstance(broker, MemoryBroker)
    broker.clock.advance_ms(duration_ms)
    node.groups.expire(node.now_ms())


def group_of(node: Node) -> Group:
    """The group `g`, which exists."""
    group = node.groups.find("g")
    assert group is not None
    return group


def call_join(
    node: Node, version: int, group: str = "g", member_id: str = "", **given: Any
) -> Call:
    request = gr.join_request(group, member_id, **given)
    return Call(node, request, version, gr.JoinGroupResponse)


def call_sync(node: Node, version: int, *given: Any, **named: Any) -> Call:
    return Call(node, gr.sync_request(*given, **named), version, gr.SyncGroupResponse)


def heartbeat(node: Node, version: int, *given: Any) -> int:
    answer = ask(node, gr.heartbeat_request(*given), version, gr.HeartbeatResponse)
    error: int = answer.error_code
    return error


def join_alone(node: Node, version: int, group: str = "g", **given: Any) -> Any:
    """Be the only member of a group; what JoinGroup answers."""
    member_id = ""
    if version >= 4 and "instance_id" not in given:
        asked = call_join(node, version, group, **given).answer
        assert asked.error_code == ErrorCode.member_id_required
        member_id = asked.member_id
    joined = call_join(node, version, group, member_id, **given)
    assert not joined.is_answered
    pass_ms(node, DELAY_MS)
    return joined.answer


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_and_leads(node: Node, version: int) -> None:
    protocols = {"range": b"m", "sticky": b"n"}
    answer = join_alone(node, version, protocols=protocols)
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.leader == answer.member_id
    assert answer.member_id.startswith("the-oracle-")
    assert answer.protocol_name == "range"
    assert [(each.member_id, each.metadata) for each in answer.members] == [
        (answer.member_id, b"m")
    ]
    if version >= 5:
        assert answer.members[0].group_instance_id is None
    if version >= 7:
        assert answer.protocol_type == "consumer"
    if version >= 9:
        assert answer.skip_assignment is False


@pytest.mark.parametrize("version", range(10))
def test_a_join_that_is_refused_says_so(node: Node, version: int) -> None:
    answer = call_join(node, version, member_id="x").answer
    assert answer.error_code == ErrorCode.unknown_member_id
    assert (answer.generation_id, answer.member_id, answer.leader) == (-1, "x", "")
    assert answer.protocol_name == ("" if version < 7 else None)
    assert answer.members == []


@pytest.mark.parametrize("version", [0, 1])
def test_the_first_version_joins_within_its_session(node: Node, version: int) -> None:
    join_alone(node, version, session_timeout_ms=7_000, rebalance_timeout_ms=9_000)
    (member,) = group_of(node).members.values()
    assert member.session_timeout_ms == 7_000
    assert member.rebalance_timeout_ms == (7_000 if version == 0 else 9_000)


def test_a_negative_rebalance_timeout_is_the_session_timeout(node: Node) -> None:
    join_alone(node, 5, rebalance_timeout_ms=-1)
    (member,) = group_of(node).members.values()
    assert member.rebalance_timeout_ms == member.session_timeout_ms


@pytest.mark.parametrize("version", range(5, 10))
def test_a_static_leader_comes_back(node: Node, version: int) -> None:
    first = join_alone(node, version, instance_id="i")
    call_sync(node, 3, "g", first.member_id, 1, {first.member_id: b"a"}, instance_id="i")
    back = call_join(node, version, instance_id="i").answer
    assert (back.error_code, back.generation_id) == (0, 1)
    if version >= 9:
        assert back.skip_assignment is True
        assert back.leader == back.member_id
        assert back.members[0].group_instance_id == "i"
    else:
        assert back.leader == first.member_id
        assert back.members == []


@pytest.mark.parametrize("version", range(6))
def test_members_get_what_the_leader_assigns(node: Node, version: int) -> None:
    calls = [call_join(node, 0) for _ in range(2)]
    pass_ms(node, DELAY_MS)
    pass_ms(node, DELAY_MS)
    leader, follower = (call.answer.member_id for call in calls)
    waiting = call_sync(node, version, "g", follower, 1, protocol="range")
    assert waiting.deferred is not None
    assert not waiting.is_answered
    assigned = {leader: b"for the leader", follower: b"for the follower"}
    own = call_sync(node, version, "g", leader, 1, assigned, protocol="range")
    assert (own.answer.error_code, own.answer.assignment) == (0, b"for the leader")
    assert waiting.answer.assignment == b"for the follower"
    if version >= 5:
        assert (own.answer.protocol_type, own.answer.protocol_name) == ("consumer", "range")
        wrong = call_sync(node, version, "g", leader, 1, protocol="other").answer
        assert wrong.error_code == ErrorCode.inconsistent_group_protocol
    refused = call_sync(node, version, "g", "x", 1).answer
    assert (refused.error_code, refused.assignment) == (ErrorCode.unknown_member_id, b"")


@pytest.mark.parametrize("version", range(5))
def test_heartbeats_are_answered(node: Node, version: int) -> None:
    member_id = join_alone(node, 5, instance_id="i").member_id
    assert heartbeat(node, version, "g", member_id, 1) == ErrorCode.none
    assert heartbeat(node, version, "g", member_id, 2) == ErrorCode.illegal_generation
    assert heartbeat(node, version, "g", "x", 1) == ErrorCode.unknown_member_id
    assert heartbeat(node, version, "", "x", 1) == ErrorCode.invalid_group_id
    fenced = heartbeat(node, version, "g", "x", 1, "i")
    expected = ErrorCode.fenced_instance_id if version >= 3 else ErrorCode.unknown_member_id
    assert fenced == expected


def leave(node: Node, version: int, *members: tuple[str, str | None], group: str = "g") -> Any:
    return ask(node, gr.leave_request(group, members), version, gr.LeaveGroupResponse)


@pytest.mark.parametrize("version", range(6))
def test_members_leave(node: Node, version: int) -> None:
    member_id = join_alone(node, 5, instance_id="i").member_id
    left = leave(node, version, (member_id, None), ("", "i"), ("x", None))
    assert left.error_code == 0
    if version >= 3:
        assert [(each.member_id, each.group_instance_id) for each in left.members] == [
            (member_id, None),
            ("", "i"),
            ("x", None),
        ]
        unknown = ErrorCode.unknown_member_id
        assert [each.error_code for each in left.members] == [0, unknown, unknown]
    again = leave(node, version, (member_id, None))
    error = again.error_code if version < 3 else again.members[0].error_code
    assert error == ErrorCode.unknown_member_id
    unnamed = leave(node, version, (member_id, None), group="")
    assert unnamed.error_code == ErrorCode.invalid_group_id


def describe(node: Node, version: int, *groups: str) -> Any:
    answer = ask(node, gr.describe_request(*groups), version, gr.DescribeGroupsResponse)
    return answer.groups


@pytest.mark.parametrize("version", range(7))
def test_a_group_is_described(node: Node, version: int) -> None:
    member_id = join_alone(node, 5, instance_id="i", protocols={"range": b"m"}).member_id
    ((group),) = describe(node, version, "g")
    assert (group.group_state, group.protocol_data) == ("CompletingRebalance", "")
    (member,) = group.members
    assert (member.member_metadata, member.member_assignment) == (b"", b"")
    call_sync(node, 3, "g", member_id, 1, {member_id: b"a"}, instance_id="i")
    group, missing = describe(node, version, "g", "nowhere")
    assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    (member,) = group.members
    assert (member.member_id, member.client_id) == (member_id, "the-oracle")
    assert member.client_host == "/"
    assert (member.member_metadata, member.member_assignment) == (b"m", b"a")
    assert (missing.group_id, missing.group_state, missing.members) == ("nowhere", "Dead", [])
    if version >= 3:
        assert group.authorized_operations is None
    if version >= 4:
        assert member.group_instance_id == "i"
    if version >= 6:
        assert group.error_message is None
        assert missing.error_code == ErrorCode.group_id_not_found
        assert missing.error_message == "Group nowhere not found."
    else:
        assert missing.error_code == 0


@pytest.mark.parametrize("version", [0, 6])
def test_a_group_is_described_once_however_often_and_long_its_name_is(
    node: Node, version: int
) -> None:
    """Else a small request could ask for an answer of any size."""
    join_alone(node, 5, instance_id="i")
    longest = "g" * 32_767
    described = describe(node, version, "g", longest, "g", longest)
    assert [each.group_id for each in described] == ["g", longest]


def list_groups(node: Node, version: int, *filters: list[str]) -> dict[str, Any]:
    answer = ask(node, gr.list_request(*filters), version, gr.ListGroupsResponse)
    assert answer.error_code == 0
    return {each.group_id: each for each in answer.groups}


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(node: Node, version: int) -> None:
    join_alone(node, 0, "joined")
    node.groups.check_commit("simple", "", None, -1, 0)
    found = list_groups(node, version)
    assert {name: each.protocol_type for name, each in found.items()} == {
        "joined": "consumer",
        "simple": "",
    }
    if version >= 4:
        assert found["joined"].group_state == "CompletingRebalance"
        assert found["simple"].group_state == "Empty"
        assert set(list_groups(node, version, ["empty", "Stable"])) == {"simple"}
        assert list_groups(node, version, ["Nonsense"]) == {}
    if version >= 5:
        assert found["joined"].group_type == "classic"
        assert set(list_groups(node, version, [], ["Classic"])) == {"joined", "simple"}
        assert list_groups(node, version, [], ["consumer"]) == {}


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted(node: Node, version: int) -> None:
    join_alone(node, 0, "joined")
    node.groups.check_commit("simple", "", None, -1, 0)
    request = gr.DeleteGroupsRequest(groups_names=["joined", "simple", "simple", "nowhere", ""])
    answer = ask(node, request, version, gr.DeleteGroupsResponse)
    assert {each.group_id: each.error_code for each in answer.results} == {
        "joined": ErrorCode.non_empty_group,
        "simple": ErrorCode.none,
        "nowhere": ErrorCode.group_id_not_found,
        "": ErrorCode.invalid_group_id,
    }
    assert set(list_groups(node, 0)) == {"joined"}


def test_a_client_whose_connection_is_gone_does_not_get_in(node: Node) -> None:
    gone = call_join(node, 0)
    assert gone.deferred is not None
    gone.deferred.abandon()
    here = call_join(node, 0)
    pass_ms(node, DELAY_MS)
    pass_ms(node, DELAY_MS)
    assert len(here.answer.members) == 1
