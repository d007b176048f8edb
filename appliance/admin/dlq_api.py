"""The handlers of dead letters, below /api/v1/groups/GROUP/dlq. Layer 5."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiohttp import web

from appliance.admin.answers import (
    FIND_STATUS,
    Handler,
    answer_with,
    error_answer,
    json_fields,
    raw_parts,
    text_of,
    with_body,
)
from appliance.admin.queries import Fields
from appliance.admin.status import StatusSource
from appliance.dead_letters import DeadListRequest, Place, ReplayRequest, parse_place
from appliance.errors import DiskFullError, FindError, RequestError
from appliance.find import LIMIT_DEFAULT, LIMIT_MAX

PLACES_MAX: Final = 100
"""Records that one request names."""

PARTITION_MAX: Final = (1 << 31) - 1

_PREFIX: Final = "/api/v1/groups/{group:[^/]*}/dlq"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a body asks to replay: these places, or all of a partition or of every one."""

    places: tuple[Place, ...]
    partition: int | None


class DlqApi:
    """The handlers.

    Args:
        status: where the answers come from.
        when_ready: makes a handler answer that the broker is not ready as long as it is not.
    """

    def __init__(self, status: StatusSource, when_ready: Callable[[Handler], Handler]) -> None:
        self._status = status
        self._when_ready = when_ready

    def routes(self) -> list[web.RouteDef]:
        """Return every path with its handler."""
        return [
            web.get(_PREFIX, self._when_ready(_answered(self._list))),
            web.post(f"{_PREFIX}/replay", self._when_ready(self._replay)),
            web.post(f"{_PREFIX}/purge", self._when_ready(self._purge)),
            web.get(f"{_PREFIX}/{{place:[^/]*}}", self._when_ready(_answered(self._show))),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        fields = Fields(request.rel_url.raw_query_string, ("partition", "after", "limit"))
        after = fields.text("after")
        wanted = DeadListRequest(
            group=_group_of(request),
            partition=fields.number("partition", 0, PARTITION_MAX),
            after=None if after is None else _read_place(after),
            limit=fields.number("limit", 1, LIMIT_MAX) or LIMIT_DEFAULT,
        )
        if wanted.after is not None and wanted.partition not in (None, wanted.after.partition):
            raise FindError("request", "after is not in that partition: leave one of them out")
        return web.json_response(text=await self._status.list_dead(wanted))

    async def _show(self, request: web.Request) -> web.Response:
        place = _read_place(text_of(raw_parts(request)[6]))
        return web.json_response(text=await self._status.show_dead(_group_of(request), place))

    async def _replay(self, request: web.Request) -> web.StreamResponse:
        return await with_body(_replay_wanted, partial(self._replay_of, _group_of(request)))(
            request
        )

    async def _replay_of(self, group: str, wanted: _Wanted) -> web.Response:
        asked = ReplayRequest(group=group, places=wanted.places, partition=wanted.partition)

        async def replay() -> web.Response:
            return answer_with(await self._status.replay_dead(asked))

        return await _translated(replay())

    async def _purge(self, request: web.Request) -> web.StreamResponse:
        return await with_body(_purge_wanted, partial(self._purge_of, _group_of(request)))(request)

    async def _purge_of(self, group: str, before: Place | None) -> web.Response:
        async def purge() -> web.Response:
            return answer_with(await self._status.purge_dead(group, before))

        return await _translated(purge())


def _answered(handler: Callable[[web.Request], Awaitable[web.Response]]) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await _translated(handler(request))

    return answer


async def _translated(work: Awaitable[web.Response]) -> web.Response:
    """Return the answer of a handler, or one that says why there is none."""
    try:
        return await work
    except FindError as error:
        return error_answer(FIND_STATUS[error.reason], error.message)
    except DiskFullError as error:
        return error_answer(507, error.message)
    except RequestError as error:
        return error_answer(409, error.message)


def _group_of(request: web.Request) -> str:
    return text_of(raw_parts(request)[4])


def _read_place(text: str) -> Place:
    try:
        return parse_place(text)
    except ValueError as error:
        raise FindError("request", str(error)) from None


def _replay_wanted(body: bytes) -> _Wanted:
    """Return what a body asks to replay.

    Raises:
        ValueError: it is something else.
    """
    fields = json_fields(body, ("places", "all", "partition"))
    is_all, partition = fields.get("all", False), fields.get("partition")
    if not isinstance(is_all, bool):
        raise ValueError("all is not a boolean")
    if ("places" in fields) == is_all:
        raise ValueError('give either places, such as ["0:17"], or all: true')
    if is_all:
        if partition is not None and not _is_partition(partition):
            raise ValueError(f"partition is not a whole number from 0 to {PARTITION_MAX}")
        return _Wanted((), partition)
    if partition is not None:
        raise ValueError("partition goes with all: the places name their partitions")
    places = fields["places"]
    if not isinstance(places, list) or not 1 <= len(places) <= PLACES_MAX:
        raise ValueError(f"places is not a list of 1 to {PLACES_MAX}")
    return _Wanted(tuple(dict.fromkeys(map(_place_in, places))), None)


def _purge_wanted(body: bytes) -> Place | None:
    """Return below which place a body asks to delete; None for everything.

    Raises:
        ValueError: it is something else.
    """
    before = json_fields(body, ("before",)).get("before")
    return None if before is None else _place_in(before)


def _place_in(value: Any) -> Place:
    if not isinstance(value, str):
        raise ValueError("a place is not a string")
    return parse_place(value)


def _is_partition(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= PARTITION_MAX
