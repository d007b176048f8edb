"""The codecs of the control plane are compiled before they are needed."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.codec_preparation import PAUSES_MAX, prepare_codecs
from appliance.errors import RemoteProtocolError
from compat.kafka import dispatch
from compat.kafka.protocol import messages

SERVED = [
    (api.key, version)
    for api in dispatch.REGISTRY.apis
    if api.handler is not None
    for version in range(api.served_from, api.versions[1] + 1)
]
SCHEMAS = (messages.request_schema, messages.response_schema)


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    for schema in SCHEMAS:
        schema.cache_clear()
    yield
    gc.unfreeze()


def never() -> bool:
    return False


def refuse(*_: Any) -> Any:
    raise AssertionError("a request compiles a codec")


def test_no_first_request_compiles_once_all_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(prepare_codecs(dispatch.prepare(), never, pause_s=0))
    monkeypatch.setattr(messages, "_compile", refuse)
    for key, version in SERVED:
        with contextlib.suppress(RemoteProtocolError):
            messages.decode_request(key, version, b"")
        with contextlib.suppress(KeyError):
            messages.encode_response(key, version, {})


def test_the_loop_compiles_none() -> None:
    threads = []

    def codecs() -> Iterator[None]:
        for _ in range(3):
            threads.append(threading.current_thread())
            yield

    asyncio.run(prepare_codecs(codecs(), never, pause_s=0))
    assert len(threads) == 3
    assert threading.current_thread() not in threads


def test_one_codec_is_compiled_at_a_time_and_what_clients_begin_with_first() -> None:
    steps = dispatch.prepare()
    for count, _ in enumerate(steps, 1):
        assert sum(schema.cache_info().currsize for schema in SCHEMAS) == count
        if count == 4:
            before = [schema.cache_info().misses for schema in SCHEMAS]
            for key, version in ((3, 12), (18, 4)):
                messages.request_schema(key, version)
                messages.response_schema(key, version)
            assert [schema.cache_info().misses for schema in SCHEMAS] == before
    assert count == 2 * len(SERVED)


def test_a_codec_waits_while_the_broker_is_busy_but_not_for_ever() -> None:
    asked: list[int] = []

    def is_busy() -> bool:
        asked.append(sum(schema.cache_info().currsize for schema in SCHEMAS))
        return asked[-1] != 2

    asyncio.run(prepare_codecs(dispatch.prepare(), is_busy, pause_s=0))
    waits = [asked.count(number) for number in (1, 2, 3)]
    assert waits == [PAUSES_MAX, 1, PAUSES_MAX]
    assert asked[-1] == 2 * len(SERVED)


def test_the_collector_is_on_again_when_preparing_is_interrupted() -> None:
    async def interrupt() -> None:
        task = asyncio.ensure_future(prepare_codecs(dispatch.prepare(), never, pause_s=0))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(interrupt())
    assert gc.isenabled()
