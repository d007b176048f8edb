"""The admin address, as a real HTTP client on loopback sees it."""

import asyncio
import socket
from urllib.parse import quote

import pytest

from appliance.admin import AdminServer
from appliance.config.config import Address
from appliance.errors import AddressError, NotReadyError
from appliance.model import TimerState
from tests.support.clients.admin_client import Status, serving

pytestmark = pytest.mark.usefixtures("loop")


async def test_health_readiness_and_metrics_of_a_ready_broker() -> None:
    async with serving(Status()) as client:
        health = await client.ask("/healthz")
        assert (health.status, health.json()) == (200, {"status": "ok"})
        readiness = await client.ask("/readyz")
        assert (readiness.status, readiness.json()) == (200, {"ready": True})
        metrics = await client.ask("/metrics")
        assert metrics.status == 200
        assert metrics.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert metrics.body == b"# TYPE latermq_up gauge\nlatermq_up 1.0\n"


async def test_a_recovering_broker_is_healthy_but_not_ready_and_shows_how_far_it_is() -> None:
    status = Status(ready=False, timers={"orders": {}})
    async with serving(status) as client:
        assert (await client.ask("/healthz")).status == 200
        expected = {
            "ready": False,
            "phase": "scanning the log",
            "recovered_bytes": 3,
            "total_bytes": 7,
        }
        for path in ("/readyz", "/api/v1/topics/orders/timers/a"):
            answer = await client.ask(path)
            assert (answer.status, answer.json()) == (503, expected)
        status.ready = True
        assert (await client.ask("/readyz")).status == 200


async def test_a_broker_that_refuses_records_is_not_ready_and_answers_all_else() -> None:
    status = Status(refusal="the broker's disk is full: free space on it")
    async with serving(status) as client:
        answer = await client.ask("/readyz")
        assert answer.status == 503
        assert answer.json() == {"ready": False, "error": status.refusal}
        for path in ("/healthz", "/metrics", "/api/v1/status"):
            assert (await client.ask(path)).status == 200
        status.refusal = None
        assert (await client.ask("/readyz")).json() == {"ready": True}


async def test_the_state_of_a_timer_is_shown_as_it_is() -> None:
    timers = {
        b"a": TimerState("pending", due_at=1_767_225_600_000, partition=3),
        b"b": TimerState("delivered", due_at=5, partition=0, offset=7),
    }
    async with serving(Status(timers={"orders": timers})) as client:
        path = "/api/v1/topics/orders/timers/"
        pending = await client.ask(path + "a")
        assert pending.status == 200
        assert pending.json() == {
            "state": "pending",
            "due_at": 1_767_225_600_000,
            "partition": 3,
            "offset": None,
        }
        delivered = (await client.ask(path + "b")).json()
        assert (delivered["state"], delivered["offset"]) == ("delivered", 7)
        unknown = await client.ask(path + "c")
        assert unknown.status == 200
        assert unknown.json() == {
            "state": "unknown",
            "due_at": None,
            "partition": None,
            "offset": None,
        }


@pytest.mark.parametrize(
    "user_id",
    [b"/", b"a/b/../c", b"..", b".", b"%", b"%41", b"+ &?#", b"\x00\xff\xfe", b"{x}", bytes(255)],
    ids=repr,
)
async def test_an_id_is_bytes_of_any_kind(user_id: bytes) -> None:
    timers = {user_id: TimerState("cancelled", due_at=1, partition=2)}
    async with serving(Status(timers={"a.topic_1-x": timers})) as client:
        everything_escaped = "".join(f"%{byte:02x}" for byte in user_id)
        for escaped in (everything_escaped, quote(user_id, safe="")):
            request = (
                f"GET /api/v1/topics/a%2Etopic_1-x/timers/{escaped} HTTP/1.1\r\n"
                "Host: localhost\r\nConnection: close\r\n\r\n"
            )
            answer = await client.send_raw(request.encode())
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            assert b'"cancelled"' in answer


@pytest.mark.parametrize("escaped", ["", "x" * 256, "%00" * 256, "a%4", "%", "%zz"])
async def test_an_id_that_is_empty_too_long_or_badly_escaped_is_refused(escaped: str) -> None:
    async with serving(Status(timers={"orders": {}})) as client:
        answer = await client.ask(f"/api/v1/topics/orders/timers/{escaped}")
        assert answer.status == 400
        assert "1 to 255 bytes" in answer.json()["error"]


@pytest.mark.parametrize("topic", ["absent", "", "%ff%fe", "or%2Fders", "%zz"])
async def test_an_unknown_topic_is_not_found(topic: str) -> None:
    async with serving(Status(timers={"orders": {}})) as client:
        answer = await client.ask(f"/api/v1/topics/{topic}/timers/a")
        assert answer.status == 404
        assert "there is no topic" in answer.json()["error"]


async def test_unknown_paths_and_methods_are_answered_in_json() -> None:
    async with serving(Status()) as client:
        for path in ("/", "/healthz/", "/api/v1/topics/a/timers/b/c", "/api/v1"):
            answer = await client.ask(path)
            assert answer.status == 404
            assert path in answer.json()["error"]
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            answer = await client.ask("/readyz", method=method)
            assert answer.status == 405
            assert method in answer.json()["error"]
            assert answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost.:9192", 200),
        ("127.0.0.1:9192", 200),
        ("127.8.8.8", 200),
        ("[::1]:80", 200),
        ("Broker.Example:1", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("10.0.0.1", 421),
        ("", 421),
    ],
)
async def test_only_requests_that_name_this_server_are_answered(host: str, status: int) -> None:
    async with serving(Status(), host_names=("broker.example",)) as client:
        answer = await client.ask("/healthz", headers={"Host": host})
        assert answer.status == status
        if status == 421:
            assert "network.admin_names" in answer.json()["error"]


async def test_on_all_addresses_any_address_in_figures_names_the_server() -> None:
    async with serving(Status(), host="0.0.0.0") as client:
        assert (await client.ask("/healthz", headers={"Host": "10.0.0.1:9192"})).status == 200
        assert (await client.ask("/healthz", headers={"Host": "evil.example"})).status == 421


async def test_a_request_without_a_host_is_refused() -> None:
    async with serving(Status()) as client:
        answer = await client.send_raw(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.0 421 ")


async def test_answers_are_not_kept_by_caches_and_tell_no_versions() -> None:
    async with serving(Status()) as client:
        for path in ("/healthz", "/metrics", "/nothing"):
            headers = (await client.ask(path)).headers
            assert headers["Server"] == "latermq"
            assert headers["Cache-Control"] == "no-store"


async def test_a_failure_inside_is_logged_and_answered_without_its_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    status = Status(timers={"orders": {}}, failure=RuntimeError("secret"))
    async with serving(status) as client:
        answer = await client.ask("/api/v1/topics/orders/timers/a")
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert "error" in answer.json()
        status.failure = NotReadyError("stopping")
        assert (await client.ask("/api/v1/topics/orders/timers/a")).status == 503
        assert (await client.ask("/healthz")).status == 200
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x00\x00\x12\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04abcd\x00\x00\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 100_000 + b"\r\n",
    ],
    ids=["kafka", "long path", "long header", "many headers"],
)
async def test_malformed_and_oversized_requests_are_refused_without_noise_in_the_log(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Status()) as client:
        try:
            answer = await client.send_raw(request_bytes)
        except ConnectionResetError:
            answer = b""  # closed with bytes of ours unread: refused all the same
        refusals = (b"HTTP/1.0 400 ", b"HTTP/1.1 431 ")
        assert answer == b"" or answer.startswith(refusals), answer[:200]
        assert (await client.ask("/healthz")).status == 200
    assert caplog.records == []


async def test_an_address_in_use_is_a_setting_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = AdminServer(Status(), Address("127.0.0.1", port))
        with pytest.raises(AddressError, match=rf"127\.0\.0\.1:{port}.*in use.*--admin"):
            await server.start()
        await server.stop()


async def test_after_stop_nothing_listens_and_a_second_stop_is_harmless() -> None:
    server = AdminServer(Status(), Address("127.0.0.1", 0))
    address = await server.start()
    await server.stop()
    await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
