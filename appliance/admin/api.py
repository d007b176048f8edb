"""The handlers of the paths below /api/v1; `openapi` describes them for clients.

In paths, topics and groups are percent-encoded UTF-8; timer ids are arbitrary percent-encoded
bytes. Lists are built in slices, so that a hundred thousand partitions do not delay deliveries, and
sent in pieces as the client reads them.
Layer 5.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import UnionType
from typing import Any, Final

from aiohttp import web

from appliance.admin.answers import (
    FIND_STATUS,
    Handler,
    answer_with,
    encode,
    error_answer,
    fields_of,
    json_fields,
    not_ready,
    raw_parts,
    text_of,
    unquote,
    with_body,
)
from appliance.admin.connections import AdminConnection, send_parts
from appliance.admin.dlq_api import DlqApi
from appliance.admin.finding import parse_query
from appliance.admin.openapi import DESCRIPTION
from appliance.admin.status import CleanupRequest, StatusSource
from appliance.admin.timer_listing import parse_count, parse_list, parse_place
from appliance.errors import ClockError, FindError, RequestError, RoleError, SnapshotError
from appliance.metrics import CONTENT_TYPE as METRICS_CONTENT_TYPE
from appliance.model import GroupStatus, MemberStatus, TimerState, TopicStatus, TopicSummary
from appliance.pending_timers import TimerPlace, TimerSelection
from appliance.timer_stages import STAGES, Stage
from appliance.units import MS_PER_DAY

USER_ID_SIZE_MAX_BYTES: Final = 255
"""The limit of the delay headers."""

ADVANCE_MAX_MS: Final = 3_660 * MS_PER_DAY
"""Ten years, at a time."""

DUE_MAX_MS: Final = 1 << 45
"""Beyond any time that delay.max.ms allows."""

SLICE_WORK: Final = 96
"""Steps through lists plus the partitions summed up, per turn of the loop: a millisecond."""

_SNAPSHOT_STATUS: Final = {
    "name": 400,
    "unknown": 404,
    "exists": 409,
    "unsupported": 501,
    "full": 507,
}
"""HTTP status by the reason of a SnapshotError."""

_LISTS: Final[Mapping[type, tuple[str, ...]]] = {
    TopicStatus: ("partitions",),
    GroupStatus: ("members", "offsets"),
    MemberStatus: ("assignment",),
}
"""The last fields of a type if they are lists that may be long."""

_CLEANUP_TYPES: Final[dict[str, type | UnionType]] = {
    "topic": str | None,
    "before_at": int | None,
    "dry_run": bool,
    "confirm_clock": bool,
}

_PURGE_TYPES: Final[dict[str, type | UnionType]] = {
    "topic": str,
    "partition": int | None,
    "from_at": int | None,
    "to_at": int | None,
}


class Api:
    """The handlers; each is fast or yields to other tasks."""

    def __init__(
        self, status: StatusSource, connection_of: Callable[[web.Request], AdminConnection]
    ) -> None:
        self._status = status
        self._connection_of = connection_of

    def routes(self) -> list[web.RouteDef]:
        """Return every path below /api/v1, and /metrics/topics, with its handler."""
        timer = "/api/v1/topics/{topic:[^/]*}/timers/{id:[^/]*}"
        snapshot = "/api/v1/snapshots/{name:[^/]*}"
        return [
            web.get("/metrics/topics", self._when_ready(self._get_topic_metrics)),
            web.get("/api/v1/openapi.json", self._get_description),
            web.get("/api/v1/replication", self._get_replication),
            web.post("/api/v1/promote", with_body(_force_wanted, self._promote)),
            web.post("/api/v1/handover", self._hand_over),
            web.post("/api/v1/alone", self._go_alone),
            web.post("/api/v1/solo", with_body(_is_slave_off, self._go_solo)),
            web.get("/api/v1/status", self._when_ready(self._get_status)),
            web.get("/api/v1/topics", self._when_ready(self._get_topics)),
            web.get("/api/v1/topics/{topic:[^/]*}", self._when_ready(self._get_topic)),
            web.get("/api/v1/groups", self._when_ready(self._get_groups)),
            web.get("/api/v1/groups/{group:[^/]*}", self._when_ready(self._get_group)),
            web.get("/api/v1/timers", self._when_ready(self._list_timers)),
            web.get("/api/v1/timers/counts", self._when_ready(self._count_timers)),
            web.post(
                "/api/v1/timers/reschedule",
                self._when_ready(with_body(_move_wanted, self._move_placed)),
            ),
            web.get("/api/v1/timers/levels", self._when_ready(self._get_levels)),
            web.get("/api/v1/timers/stages", self._when_ready(self._get_stages)),
            web.post(
                "/api/v1/timers/stages",
                self._when_ready(with_body(_stage_wanted, self._change_stage)),
            ),
            web.post(
                "/api/v1/timers/purge",
                self._when_ready(with_body(_purge_wanted, self._purge_timers)),
            ),
            web.get(timer, self._when_ready(self._get_timer)),
            web.delete(timer, self._when_ready(self._cancel_timer)),
            web.post(f"{timer}/reschedule", self._when_ready(self._reschedule_timer)),
            web.get("/api/v1/clock", self._when_ready(self._get_clock)),
            web.post(
                "/api/v1/clock/advance",
                self._when_ready(with_body(_advance_wanted, self._advance_clock)),
            ),
            web.post(
                "/api/v1/cleanup", self._when_ready(with_body(_cleanup_request, self._clean_up))
            ),
            web.get("/api/v1/find", self._when_ready(self._find)),
            web.get("/api/v1/snapshots", self._when_ready(self._get_snapshots)),
            web.post(
                "/api/v1/snapshots",
                self._when_ready(with_body(_snapshot_name, self._create_snapshot)),
            ),
            web.get(snapshot, self._when_ready(self._get_snapshot)),
            web.delete(snapshot, self._when_ready(self._delete_snapshot)),
            *DlqApi(self._status, self._when_ready).routes(),
        ]

    def _when_ready(self, handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            return await handler(request) if self._status.ready else not_ready(self._status)

        return answer

    async def _get_description(self, _request: web.Request) -> web.Response:
        return web.json_response(DESCRIPTION)

    async def _get_replication(self, _request: web.Request) -> web.Response:
        return answer_with(self._status.replication())

    async def _promote(self, is_forced: bool) -> web.Response:
        try:
            return answer_with(await self._status.promote(is_forced=is_forced))
        except RoleError as error:
            return error_answer(409, error.message)

    async def _hand_over(self, _request: web.Request) -> web.Response:
        try:
            return answer_with(await self._status.hand_over())
        except RoleError as error:
            return error_answer(409, error.message)

    async def _go_alone(self, _request: web.Request) -> web.Response:
        try:
            return answer_with(self._status.go_alone())
        except RoleError as error:
            return error_answer(409, error.message)

    async def _go_solo(self, is_slave_off: bool) -> web.Response:
        try:
            return answer_with(self._status.go_solo(is_slave_off=is_slave_off))
        except RoleError as error:
            return error_answer(409, error.message)

    async def _get_status(self, _request: web.Request) -> web.Response:
        return answer_with(self._status.status())

    async def _get_topics(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, _object({}, {"topics": self._status.topics()}))

    async def _send(
        self, request: web.Request, parts: Iterator[tuple[str, int]]
    ) -> web.StreamResponse:
        connection = self._connection_of(request)
        return await send_parts(connection, request, parts, slice_work=SLICE_WORK)

    async def _get_topic_metrics(self, request: web.Request) -> web.StreamResponse:
        return await send_parts(
            self._connection_of(request),
            request,
            self._status.topic_metrics(),
            slice_work=SLICE_WORK,
            content_type=METRICS_CONTENT_TYPE,
        )

    async def _get_topic(self, request: web.Request) -> web.StreamResponse:
        name = text_of(raw_parts(request)[4])
        topic = self._status.topic(name)
        if topic is None:
            return error_answer(404, f"there is no topic {name!r}")
        return await self._send(request, _parts(topic))

    async def _get_groups(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, _object({}, {"groups": self._status.groups()}))

    async def _get_group(self, request: web.Request) -> web.StreamResponse:
        name = text_of(raw_parts(request)[4])
        group = self._status.group(name)
        if group is None:
            return error_answer(404, f"there is no group {name!r}")
        return await self._send(request, _parts(group))

    # Timers

    async def _get_timer(self, request: web.Request) -> web.Response:
        topic, user_id = _timer_of(request)
        if user_id is None:
            return _bad_id(request)
        timer = await self._status.timer_state(topic, user_id)
        if timer is None:
            return error_answer(404, f"there is no topic {topic!r}")
        return answer_with(timer)

    async def _cancel_timer(self, request: web.Request) -> web.Response:
        topic, user_id = _timer_of(request)
        if user_id is None:
            return _bad_id(request)
        try:
            timer = await self._status.cancel_timer(topic, user_id)
        except RequestError as error:
            return error_answer(507, error.message)
        if timer is None:
            return error_answer(404, f"there is no topic {topic!r}")
        return _cancelled(timer)

    async def _reschedule_timer(self, request: web.Request) -> web.StreamResponse:
        topic, user_id = _timer_of(request)
        if user_id is None:
            return _bad_id(request)
        return await with_body(_due_wanted, partial(self._move_timer, topic, user_id))(request)

    async def _move_timer(self, topic: str, user_id: bytes, due_at: int | None) -> web.Response:
        try:
            timer, is_moved = await self._status.move_timer(topic, user_id, due_at)
        except FindError as error:
            return error_answer(FIND_STATUS[error.reason], error.message)
        except RequestError as error:
            return error_answer(507, error.message)
        if is_moved:
            return answer_with(timer)
        return _refused(timer, f"too late to reschedule: the timer was {timer.state}")

    async def _move_placed(self, wanted: tuple[TimerPlace, int | None]) -> web.Response:
        try:
            return answer_with(await self._status.move_placed(*wanted))
        except FindError as error:
            return error_answer(FIND_STATUS[error.reason], error.message)
        except RequestError as error:
            return error_answer(507, error.message)

    async def _list_timers(self, request: web.Request) -> web.Response:
        try:
            found = await self._status.list_timers(parse_list(request.rel_url.raw_query_string))
        except FindError as error:
            return error_answer(FIND_STATUS[error.reason], error.message)
        return web.json_response(text=found)

    async def _purge_timers(self, wanted: TimerSelection) -> web.Response:
        try:
            return answer_with(await self._status.purge_timers(wanted))
        except FindError as error:
            return error_answer(FIND_STATUS[error.reason], error.message)
        except RequestError as error:
            return error_answer(507, error.message)

    async def _count_timers(self, request: web.Request) -> web.Response:
        try:
            found = await self._status.count_timers(parse_count(request.rel_url.raw_query_string))
        except FindError as error:
            return error_answer(FIND_STATUS[error.reason], error.message)
        return answer_with(found)

    async def _get_levels(self, _request: web.Request) -> web.Response:
        return answer_with({"levels": self._status.levels()})

    async def _get_stages(self, _request: web.Request) -> web.Response:
        return answer_with({"stages": self._status.stages()})

    async def _change_stage(self, wanted: tuple[Stage, bool]) -> web.Response:
        stage, is_stopped = wanted
        try:
            stages = await self._status.change_stage(stage, is_stopped=is_stopped)
        except RequestError as error:
            return error_answer(507, error.message)
        return answer_with({"stages": stages})

    # Records

    async def _find(self, request: web.Request) -> web.Response:
        try:
            found = await self._status.find(parse_query(request.rel_url.raw_query_string))
        except FindError as error:
            return error_answer(FIND_STATUS[error.reason], error.message)
        return web.json_response(text=found)

    # Clock

    async def _get_clock(self, _request: web.Request) -> web.Response:
        return answer_with(self._status.clock())

    async def _advance_clock(self, by_ms: int) -> web.Response:
        try:
            return answer_with(await self._status.advance_clock(by_ms))
        except ClockError as error:
            return error_answer(409, error.message)

    # Retention

    async def _clean_up(self, wanted: CleanupRequest) -> web.Response:
        try:
            done = await self._status.clean_up(wanted)
        except RequestError as error:
            return error_answer(507, error.message)
        if done is None:
            return error_answer(404, f"there is no topic {wanted.topic!r}")
        return answer_with(done)

    # Snapshots

    async def _get_snapshots(self, _request: web.Request) -> web.Response:
        return answer_with({"snapshots": await self._status.snapshots()})

    async def _get_snapshot(self, request: web.Request) -> web.Response:
        name = text_of(raw_parts(request)[4])
        for each in await self._status.snapshots():
            if each.name == name:
                return answer_with(each)
        return error_answer(404, f"there is no snapshot {name!r}")

    async def _create_snapshot(self, name: str | None) -> web.Response:
        try:
            return answer_with(await self._status.create_snapshot(name), status=201)
        except SnapshotError as error:
            return error_answer(_SNAPSHOT_STATUS[error.reason], error.message)

    async def _delete_snapshot(self, request: web.Request) -> web.Response:
        try:
            return answer_with(await self._status.delete_snapshot(text_of(raw_parts(request)[4])))
        except SnapshotError as error:
            return error_answer(_SNAPSHOT_STATUS[error.reason], error.message)


def _cleanup_request(body: bytes) -> CleanupRequest:
    """Return the request in a body.

    Raises:
        ValueError: it is something else.
    """
    fields = json_fields(body, _CLEANUP_TYPES)
    for name, value in fields.items():
        is_wrong_bool = isinstance(value, bool) and name == "before_at"
        if is_wrong_bool or not isinstance(value, _CLEANUP_TYPES[name]):
            raise ValueError(f"{name} has a wrong type")
    if fields.get("dry_run") and fields.get("confirm_clock"):
        raise ValueError("confirm_clock changes the age of records: leave out dry_run")
    return CleanupRequest(
        topic=fields.get("topic"),
        before_at=fields.get("before_at"),
        is_dry_run=fields.get("dry_run", False),
        confirms_clock=fields.get("confirm_clock", False),
    )


def _snapshot_name(body: bytes) -> str | None:
    """Return the name in the body of a request; None if it has none.

    Raises:
        ValueError: it is something else.
    """
    fields = json_fields(body, ("name",))
    name = fields.get("name")
    if name is not None and not isinstance(name, str):
        raise ValueError("the name is not a string")
    return name


def _purge_wanted(body: bytes) -> TimerSelection:
    """Return which timers a body asks to cancel.

    Raises:
        ValueError: it is something else.
    """
    fields = json_fields(body, _PURGE_TYPES)
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, _PURGE_TYPES[name]):
            raise ValueError(f"{name} has a wrong type")
    if fields.get("topic") is None:
        raise ValueError("topic is missing: timers of one topic are cancelled at a time")
    return TimerSelection(
        topic=fields["topic"],
        partition=fields.get("partition"),
        due=(fields.get("from_at"), fields.get("to_at")),
    )


def _due_wanted(body: bytes) -> int | None:
    """Return the due time that a body asks for, epoch ms; None for now.

    Raises:
        ValueError: the body says something else.
    """
    return _due_of(json_fields(body, ("due_at",)))


def _move_wanted(body: bytes) -> tuple[TimerPlace, int | None]:
    """Return the place of a timer, and the due time that a body asks for, as `_due_wanted`.

    Raises:
        ValueError: the body says something else.
    """
    fields = json_fields(body, ("place", "due_at"))
    place = fields.get("place")
    if not isinstance(place, str):
        raise ValueError("place is missing: use that of a list of timers")
    try:
        return parse_place(place), _due_of(fields)
    except FindError as error:
        raise ValueError(error.message) from None


def _stage_wanted(body: bytes) -> tuple[Stage, bool]:
    """Return a stage, and whether a body wants it stopped.

    Raises:
        ValueError: the body says something else.
    """
    fields = json_fields(body, ("stage", "stopped"))
    stage, is_stopped = fields.get("stage"), fields.get("stopped")
    if stage not in STAGES:
        raise ValueError(f"stage is none of: {', '.join(STAGES)}")
    if not isinstance(is_stopped, bool):
        raise ValueError("stopped is neither true nor false")
    return stage, is_stopped


def _due_of(fields: dict[str, Any]) -> int | None:
    due_at = fields.get("due_at", "")
    if due_at is None:
        return None
    if not isinstance(due_at, int) or isinstance(due_at, bool) or not 0 <= due_at <= DUE_MAX_MS:
        raise ValueError("due_at is neither null, for now, nor an instant in epoch ms")
    return due_at


def _advance_wanted(body: bytes) -> int:
    """Return by how many milliseconds a clock is advanced.

    Raises:
        ValueError: the body says something else.
    """
    by_ms = json_fields(body, ("by_ms",)).get("by_ms")
    if not isinstance(by_ms, int) or isinstance(by_ms, bool) or not 0 <= by_ms <= ADVANCE_MAX_MS:
        raise ValueError(f"by_ms is not a whole number from 0 to {ADVANCE_MAX_MS}")
    return by_ms


def _force_wanted(body: bytes) -> bool:
    """Return whether a request to promote insists.

    Raises:
        ValueError: it is something else.
    """
    return _flag(body, "force")


def _is_slave_off(body: bytes) -> bool:
    """Return whether a request to go on alone states that the slave is off.

    Raises:
        ValueError: it is something else.
    """
    return _flag(body, "slave_is_off")


def _flag(body: bytes, name: str) -> bool:
    """Return the one field that a body may have."""
    is_set = json_fields(body, (name,)).get(name, False)
    if not isinstance(is_set, bool):
        raise ValueError(f"{name} is not a boolean")
    return is_set


def _cancelled(timer: TimerState) -> web.Response:
    if timer.state == "cancelled":
        return answer_with(timer)
    return _refused(timer, "too late to cancel: the timer was delivered")


def _refused(timer: TimerState, sentence: str) -> web.Response:
    """Answer that a timer cannot be changed, because of its state."""
    status = 409
    if timer.state == "unknown":
        sentence, status = "this topic has no timer with this id", 404
    return web.json_response({"error": sentence, **fields_of(timer)}, status=status)


def _parts(value: object) -> Iterator[tuple[str, int]]:
    """Yield the JSON of a value in parts, those of its long lists one by one, and their work."""
    names = _LISTS.get(type(value))
    if names is None:
        partitions = value.partition_count if isinstance(value, TopicSummary) else 0
        yield encode(value), 1 + partitions
        return
    fields = fields_of(value)
    lists = {name: fields.pop(name) for name in names}
    yield from _object(fields, lists)


def _object(
    fields: Mapping[str, Any], lists: Mapping[str, Iterable[object] | None]
) -> Iterator[tuple[str, int]]:
    """Yield the parts of an object: its short fields, then its lists."""
    begin = encode(fields)[:-1]
    for name, items in lists.items():
        comma = "" if begin == "{" else ", "
        yield f'{begin}{comma}"{name}": ', 1
        begin = ""
        if items is None:
            yield "null", 0
        else:
            yield from _list(items)
    yield "}", 0


def _list(items: Iterable[object]) -> Iterator[tuple[str, int]]:
    """Yield the parts of a list; an item that is None is work without a part."""
    separator = "["
    for item in items:
        if item is None:
            yield "", 1
            continue
        yield separator, 0
        yield from _parts(item)
        separator = ", "
    yield "[]" if separator == "[" else "]", 0


def _timer_of(request: web.Request) -> tuple[str, bytes | None]:
    """Return the topic and the timer id in a path; None for an invalid id."""
    parts = raw_parts(request)
    user_id = unquote(parts[6])
    if user_id is not None and not 1 <= len(user_id) <= USER_ID_SIZE_MAX_BYTES:
        user_id = None
    return text_of(parts[4]), user_id


def _bad_id(request: web.Request) -> web.Response:
    user_id = unquote(raw_parts(request)[6])
    size = "a broken percent-escape" if user_id is None else f"{len(user_id)} bytes"
    return error_answer(
        400, f"the id has {size}; percent-encode 1 to {USER_ID_SIZE_MAX_BYTES} bytes"
    )
