"""NATS JetStream with scheduled messages (its ADR-51), for `bench-rivals`."""

import asyncio
import contextlib
import importlib
import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from perf.machine import BenchError
from perf.rival_servers import LIMIT_S, Rival, Taken, now_us, record

IN_FLIGHT = 4_000


async def _pass_over(_: Exception) -> None:
    """What fails is raised as well."""


class Nats(Rival):
    """A stream on disk. Each record has a subject of its own, as a schedule needs one."""

    name = "NATS 2.15, JetStream schedules"
    needs = ("nats-server", "nats")

    def _command(self) -> list[str]:
        store = str(self._place / "store")
        return ["nats-server", "-js", "-sd", store, "-a", "127.0.0.1", "-p", str(self._port)]

    def _run(self, act: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine with a connection of its own."""

        async def connected() -> Any:
            module: Any = importlib.import_module("nats")
            connection = await module.connect(
                f"nats://127.0.0.1:{self._port}",
                allow_reconnect=False,
                connect_timeout=2,
                error_cb=_pass_over,
            )
            try:
                return await act(connection)
            finally:
                await connection.close()

        return asyncio.run(connected())

    def _connect(self) -> None:
        self._run(self._request("$JS.API.INFO", None))

    def _request(self, subject: str, body: object) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        async def ask(connection: Any) -> Any:
            data = b"" if body is None else json.dumps(body).encode()
            answer = json.loads((await connection.request(subject, data, timeout=10)).data)
            if "error" in answer:
                raise BenchError(f"{self.name}: {answer['error']}")
            return answer

        return ask

    def prepare(self) -> None:
        self._stream = f"t{now_us()}"
        settings = {
            "name": self._stream,
            "subjects": [f"{self._stream}.at.>", f"{self._stream}.due"],
            "storage": "file",
            "allow_msg_schedules": True,
        }
        self._run(self._request(f"$JS.API.STREAM.CREATE.{self._stream}", settings))

    def schedule(self, dues_us: Sequence[int]) -> None:
        async def publish(connection: Any) -> None:
            stream = connection.jetstream(publish_async_max_pending=IN_FLIGHT)
            acknowledged = []
            for number, due_us in enumerate(dues_us):
                at = datetime.fromtimestamp(due_us / 1e6, UTC).isoformat(timespec="milliseconds")
                headers = {
                    "Nats-Schedule": f"@at {at.replace('+00:00', 'Z')}",
                    "Nats-Schedule-Target": f"{self._stream}.due",
                }
                subject = f"{self._stream}.at.{number}"
                data = record(due_us, number)
                acknowledged.append(await stream.publish_async(subject, data, headers=headers))
                if number % IN_FLIGHT == IN_FLIGHT - 1:
                    await asyncio.wait_for(asyncio.gather(*acknowledged), LIMIT_S)
                    acknowledged.clear()
            await asyncio.wait_for(asyncio.gather(*acknowledged), LIMIT_S)

        self._run(publish)

    def take(self, count: int, taken: Taken, stop: threading.Event) -> None:
        async def receive(connection: Any) -> None:
            done = asyncio.Event()

            async def note(message: Any) -> None:
                taken.note(message.data)
                if len(taken.late_us) >= count:
                    done.set()

            stream = connection.jetstream()
            await stream.subscribe(f"{self._stream}.due", cb=note, ordered_consumer=True)
            while not done.is_set() and not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), 0.05)

        self._run(receive)

    def pending(self) -> int:
        found = self._run(self._request("$JS.API.STREAM.LIST", {}))
        return sum(int(each["state"]["messages"]) for each in found["streams"])
