"""Answers that no etcd gives: each is refused, and none changes what is believed."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from appliance.coordination import etcd_wire
from appliance.coordination.etcd_wire import ANSWER_SIZE_MAX_BYTES, Found, Put
from appliance.coordination.records import (
    TERM_MAX,
    Holder,
    PairRecord,
    decode_holder,
    decode_pair,
    encode_holder,
    encode_pair,
    name_keys,
)
from appliance.errors import RemoteProtocolError

KEYS = (b"one", b"two")
KVS = {"key": "b25l", "value": "eA==", "mod_revision": "7", "lease": "9"}
GOOD: dict[str, Any] = {
    "header": {"revision": "12"},
    "succeeded": True,
    "responses": [
        {"response_put": {"header": {}}},
        {"response_range": {"kvs": [KVS], "count": "1"}},
        {"response_range": {"header": {}}},
    ],
}


def decode(fields: object) -> etcd_wire.Written:
    return etcd_wire.decode_written(json.dumps(fields).encode(), put_count=1, keys=KEYS)


def test_an_answer_to_a_transaction_has_the_keys_that_exist() -> None:
    written = decode(GOOD)
    assert written.is_done
    assert written.found == {b"one": Found(b"x", 7, 9)}
    refused = decode({"responses": GOOD["responses"][1:]})
    assert not refused.is_done
    assert refused.found == written.found


@pytest.mark.parametrize(
    "change",
    [
        {"succeeded": "true"},
        {"succeeded": False},
        {"responses": GOOD["responses"][1:]},
        {"responses": {}},
        {"responses": [{}, {"response_range": []}, {}]},
        {"responses": [{}, "x", {}]},
        *(
            {"responses": [{}, {"response_range": {"kvs": kvs}}, {"response_range": {}}]}
            for kvs in (
                [KVS, KVS],
                [KVS | {"key": "dHdv"}],
                [KVS | {"value": "?"}],
                [KVS | {"value": "A" * 8_000}],
                [KVS | {"mod_revision": "0"}],
                [KVS | {"mod_revision": 7}],
                [KVS | {"mod_revision": "-7"}],
                [KVS | {"mod_revision": str(1 << 63)}],
                [KVS | {"lease": "²"}],
                ["x"],
                "x",
            )
        ),
    ],
)
def test_an_answer_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(GOOD | change)


@pytest.mark.parametrize(
    "read",
    [
        etcd_wire.decode_grant,
        lambda body: etcd_wire.decode_keep_alive(body, 7),
        lambda body: etcd_wire.decode_written(body, put_count=0, keys=KEYS),
        decode_holder,
        decode_pair,
    ],
)
def test_garbage_is_refused(read: Callable[[bytes], object]) -> None:
    chance = random.Random(1)
    good = json.dumps(GOOD | {"result": {"ID": "7"}, "ID": "7", "node": 1, "term": 1}).encode()
    bodies = [b"", b"null", b"[" * 50_000, b"1" * 5_000, b" " * ANSWER_SIZE_MAX_BYTES, b"\xff"]
    for _ in range(300):
        changed = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        bodies.append(bytes(changed[: chance.randrange(len(changed))]))
    for body in bodies:
        with pytest.raises(RemoteProtocolError):
            read(body)


def test_a_lease_of_another_answer_is_refused() -> None:
    assert etcd_wire.decode_keep_alive(b'{"result":{"ID":"7","TTL":"5"}}', 7) == 5
    assert etcd_wire.decode_keep_alive(b'{"result":{"ID":"7"}}', 7) == 0
    with pytest.raises(RemoteProtocolError, match="another lease"):
        etcd_wire.decode_keep_alive(b'{"result":{"ID":"8","TTL":"5"}}', 7)
    for body in (b'{"ID":"0","TTL":"5"}', b'{"ID":"5"}'):
        with pytest.raises(RemoteProtocolError):
            etcd_wire.decode_grant(body)


def test_a_problem_is_read_if_there_is_one() -> None:
    assert etcd_wire.decode_problem(b'{"error":"no lease"}') == "no lease"
    for body in (b"", b"{}", b'{"error":5}', b"<html>"):
        assert etcd_wire.decode_problem(body) == ""


def test_a_transaction_compares_each_revision() -> None:
    call = etcd_wire.transact({b"one": 7, b"two": 0}, [Put(b"one", b"x", 9)], [b"two"])
    fields = json.loads(call.body)
    assert [each["mod_revision"] for each in fields["compare"]] == ["7", "0"]
    assert {each["target"] for each in fields["compare"]} == {"MOD"}
    assert len(fields["success"]) == 2
    assert len(fields["failure"]) == 1


@pytest.mark.parametrize("term", [0, 1, TERM_MAX])
def test_records_are_read_as_they_were_written(term: int) -> None:
    for node in (1, 2):
        assert decode_holder(encode_holder(Holder(node, term))) == Holder(node, term)
        for in_sync in (False, True):
            record = PairRecord(node, term, in_sync)
            assert decode_pair(encode_pair(record)) == record


def test_keys_of_two_clusters_differ() -> None:
    keys = name_keys("/latermq", bytes(16))
    assert keys.both == (b"/latermq/" + b"00" * 16 + b"/master", keys.pair)
    assert not set(keys.both) & set(name_keys("/latermq/", bytes([1] * 16)).both)
