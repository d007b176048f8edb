"""The client of etcd with a real one, and the model of it that the schedules use."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.config.endpoint import parse_endpoint
from appliance.coordination import etcd_wire
from appliance.coordination.etcd import Etcd, EtcdFiles
from appliance.coordination.etcd_wire import Call, Found, Put
from appliance.errors import ConfigError, CoordinatorError
from tests.support.harness.etcd_server import ETCD, EtcdServer, make_certificates
from tests.support.oracles.etcd_model import EtcdModel, Refused

pytestmark = pytest.mark.skipif(ETCD is None, reason="no etcd here: apt install etcd-server")

KEYS = (b"/t/master", b"/t/pair")


def client(*urls: str, files: EtcdFiles | None = None, timeout_ms: int = 5_000) -> Etcd:
    endpoints = [parse_endpoint(url) for url in urls]
    return Etcd(endpoints, files=files or EtcdFiles(), timeout_ms=timeout_ms)


class Both:
    """Asks the real one and the model the same.

    Leases are compared by what they do: their numbers, and the revisions, are of each one's own.
    """

    def __init__(self, real: Etcd) -> None:
        self._real, self._model = real, EtcdModel()
        self._leases: list[tuple[int, int]] = []
        self.found: list[dict[bytes, Found]] = [{}, {}]

    async def ask(self, real: Call, model: Call) -> list[bytes]:
        """Return both answers; none if both refuse it."""
        answers = []
        with suppress(Refused):
            answers.append(self._model.handle(model, 0))
        try:
            answers.insert(0, await self._real.ask(real))
        except CoordinatorError as error:
            if not error.is_refused:
                raise
        assert len(answers) in (0, 2), "one of them refuses it"
        return answers

    async def grant(self) -> int:
        """Return the index of a new lease."""
        first, second = await self.ask(etcd_wire.grant(60), etcd_wire.grant(60))
        one, other = etcd_wire.decode_grant(first), etcd_wire.decode_grant(second)
        assert one[1] == other[1] == 60
        self._leases.append((one[0], other[0]))
        return len(self._leases) - 1

    async def revoke(self, lease: int) -> None:
        await self.ask(*(etcd_wire.revoke(number) for number in self._leases[lease]))

    async def keep_alive(self, lease: int) -> int:
        """Return how long it lives."""
        numbers = self._leases[lease]
        answers = await self.ask(*(etcd_wire.keep_alive(number) for number in numbers))
        one, other = map(etcd_wire.decode_keep_alive, answers, numbers)
        assert one == other
        return one

    async def write(self, *puts: tuple[bytes, bytes, int | None], off_by: int = 0) -> None:
        """Write and read; `off_by` is what the expected revision of the first key is wrong by."""
        calls = []
        for index in (0, 1):
            known = self.found[index]
            expected = {key: known[key].mod_revision if key in known else 0 for key in KEYS}
            expected[KEYS[0]] += off_by
            made = [
                Put(key, value, 0 if lease is None else self._leases[lease][index])
                for key, value, lease in puts
            ]
            calls.append(etcd_wire.transact(expected if puts else {}, made, KEYS))
        shown = []
        for index, body in enumerate(await self.ask(*calls)):
            result = etcd_wire.decode_written(body, put_count=len(puts), keys=KEYS)
            self.found[index] = dict(result.found)
            numbers = [pair[index] for pair in self._leases]
            values = {
                key: (one.value, numbers.index(one.lease) if one.lease else None)
                for key, one in result.found.items()
            }
            shown.append((result.is_done, values))
        assert shown[:1] == shown[1:]


def test_the_model_answers_as_etcd_does(etcd: EtcdServer) -> None:
    async def compare() -> None:
        both = Both(client(etcd.url))
        lease = await both.grant()
        await both.write()
        await both.write((KEYS[0], b"a", lease), (KEYS[1], b"b", None))
        await both.write((KEYS[0], b"c", lease), off_by=1_000)
        await both.write((KEYS[1], b"d", None))
        other = await both.grant()
        await both.write((KEYS[0], b"e", other))
        for _ in range(2):  # the second time it does not exist
            await both.revoke(lease)
        await both.write()
        assert set(both.found[0]) == set(KEYS), "the other lease holds the key"
        assert await both.keep_alive(other) == 60
        assert await both.keep_alive(lease) == 0
        await both.write((KEYS[0], b"f", lease))  # with a lease that has ended
        await both.write()
        await both.revoke(other)
        await both.write()
        assert set(both.found[0]) == {KEYS[1]}

    asyncio.run(compare())


def test_a_key_ends_with_its_lease(etcd: EtcdServer) -> None:
    async def wait() -> None:
        asks = client(etcd.url)
        lease, ttl_s = etcd_wire.decode_grant(await asks.ask(etcd_wire.grant(1)))
        put = Put(KEYS[0], b"here", lease)
        await asks.ask(etcd_wire.transact({KEYS[0]: 0}, [put]))
        async with asyncio.timeout(ttl_s + 20):
            while True:
                body = await asks.ask(etcd_wire.read(KEYS))
                if not etcd_wire.decode_written(body, put_count=0, keys=KEYS).found:
                    return
                await asyncio.sleep(0.05)

    asyncio.run(wait())


def test_the_next_member_is_asked_if_one_does_not_answer(etcd: EtcdServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        urls = [f"http://127.0.0.1:{each.getsockname()[1]}" for each in (closed, silent)]

        async def ask() -> None:
            asks = client(*urls, etcd.url, timeout_ms=2_000)
            for _ in range(3):
                await asks.ask(etcd_wire.read(KEYS))
            etcd.stop()
            with pytest.raises(CoordinatorError, match="took longer than 2 s") as raised:
                await asks.ask(etcd_wire.read(KEYS))
            assert not raised.value.is_refused
            etcd.start()
            await asks.ask(etcd_wire.read(KEYS))

        asyncio.run(ask())


def test_tls_needs_the_authority_of_the_member_and_the_client(tmp_path: Path) -> None:
    directory = tmp_path / "certificates"
    make_certificates(directory)
    server = EtcdServer(tmp_path, directory)
    server.start()
    call = etcd_wire.read(KEYS)
    known = EtcdFiles(directory / "ca.pem", directory / "client.pem")
    try:
        asyncio.run(client(server.url, files=known).ask(call))
        with pytest.raises(CoordinatorError, match="CERTIFICATE_VERIFY_FAILED"):
            asyncio.run(client(server.url).ask(call))
        with pytest.raises(CoordinatorError):
            asyncio.run(client(server.url, files=EtcdFiles(directory / "ca.pem")).ask(call))
        with pytest.raises(ConfigError, match="etcd_ca_file"):
            client(server.url, files=EtcdFiles(tmp_path / "missing"))
    finally:
        server.stop()
