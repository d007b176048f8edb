"""Requests and answers of etcd's JSON gateway, version 3: what is sent, and what is believed.

A key or a value is base64, a 64-bit number is a string, and a field that is zero is left out. An
answer is checked as a message from the network: anything unexpected is a RemoteProtocolError.
Layer 3; does no I/O.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from appliance.errors import RemoteProtocolError

ANSWER_SIZE_MAX_BYTES: Final = 65_536
"""Of one answer: a few keys of at most VALUE_SIZE_MAX_BYTES and their frame."""

VALUE_SIZE_MAX_BYTES: Final = 4_096
"""Of one value that is read or written."""

KEY_COUNT_MAX: Final = 8
"""In one transaction."""

_INT64_MAX: Final = (1 << 63) - 1

Fields: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One request: a path of the gateway and the fields of its body."""

    path: str
    fields: Fields

    @property
    def body(self) -> bytes:
        """The body as it is sent."""
        return json.dumps(self.fields, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Found:
    """A key that exists.

    Attributes:
        value: its bytes.
        mod_revision: grows with each change of it.
        lease: the lease that it ends with; 0: none.
    """

    value: bytes
    mod_revision: int
    lease: int


@dataclass(frozen=True, slots=True)
class Put:
    """A key to write; `lease` 0 writes one that stays."""

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """The answer to a transaction.

    Attributes:
        is_done: each comparison was true, and everything is written.
        found: the keys as they are after it, by key; a key that does not exist is not in it.
    """

    is_done: bool
    found: Mapping[bytes, Found]


def grant(ttl_s: int) -> Call:
    """Ask for a lease of that many seconds; etcd may give a longer one."""
    return Call("/v3/lease/grant", {"TTL": str(ttl_s)})


def keep_alive(lease: int) -> Call:
    """Ask for the whole time of a lease again."""
    return Call("/v3/lease/keepalive", {"ID": str(lease)})


def revoke(lease: int) -> Call:
    """End a lease, and with it the keys that have it. No later Put with it is done."""
    return Call("/v3/lease/revoke", {"ID": str(lease)})


def read(keys: Sequence[bytes]) -> Call:
    """Read keys at one revision that all members of etcd agree on."""
    return transact({}, (), keys)


def transact(
    expected: Mapping[bytes, int], puts: Sequence[Put], keys: Sequence[bytes] = ()
) -> Call:
    """Write keys if others have not changed, and read some in either case, at one revision.

    Args:
        expected: the mod_revision that each key must have; 0: it must not exist.
        puts: what is written then. With a lease that has ended, etcd refuses all of it.
        keys: what is read, after the writing.
    """
    assert max(len(expected), len(puts), len(keys)) <= KEY_COUNT_MAX
    assert all(len(put.value) <= VALUE_SIZE_MAX_BYTES for put in puts)
    reads = [{"requestRange": {"key": _encode(key)}} for key in keys]
    writes = [
        {"requestPut": {"key": _encode(put.key), "value": _encode(put.value), "lease": put.lease}}
        for put in puts
    ]
    compare = [
        {
            "key": _encode(key),
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": str(revision),
        }
        for key, revision in expected.items()
    ]
    return Call("/v3/kv/txn", {"compare": compare, "success": [*writes, *reads], "failure": reads})


def decode_grant(body: bytes) -> tuple[int, int]:
    """Return the number of a new lease, and its time in seconds.

    Raises:
        RemoteProtocolError: the answer is none to `grant`.
    """
    fields = _decode(body)
    lease, ttl_s = _number(fields, "ID"), _number(fields, "TTL")
    if not lease or not ttl_s:
        raise RemoteProtocolError("etcd granted a lease without a number or a time")
    return lease, ttl_s


def decode_keep_alive(body: bytes, lease: int) -> int:
    """Return for how many seconds a lease lives from now on; 0: it has ended.

    Raises:
        RemoteProtocolError: the answer is none to `keep_alive` of this lease.
    """
    result = _object(_decode(body), "result")
    if _number(result, "ID") != lease:
        raise RemoteProtocolError("etcd answers about another lease")
    return _number(result, "TTL")


def decode_written(body: bytes, *, put_count: int, keys: Sequence[bytes]) -> Written:
    """Return what a transaction did.

    Args:
        body: the answer to `transact` or `read`.
        put_count: how many Puts it had.
        keys: what it read.

    Raises:
        RemoteProtocolError: the answer is none to such a transaction.
    """
    fields = _decode(body)
    is_done = fields.get("succeeded", False)
    responses = fields.get("responses", [])
    if not isinstance(is_done, bool) or not isinstance(responses, list):
        raise RemoteProtocolError("etcd's answer to a transaction has fields of other types")
    ranges = responses[put_count:] if is_done else responses
    if len(ranges) != len(keys):
        raise RemoteProtocolError(f"etcd answers with {len(ranges)} keys in place of {len(keys)}")
    found = {}
    for key, response in zip(keys, ranges, strict=True):
        if not isinstance(response, dict):
            raise RemoteProtocolError("etcd's answer to a transaction has fields of other types")
        one = _decode_range(_object(response, "response_range"), key)
        if one is not None:
            found[key] = one
    return Written(is_done, found)


def decode_problem(body: bytes) -> str:
    """Return what etcd says of a request that it refuses; "" if that cannot be read."""
    try:
        problem = _decode(body).get("error")
    except RemoteProtocolError:
        return ""
    return problem if isinstance(problem, str) else ""


def _decode_range(fields: Fields, key: bytes) -> Found | None:
    found = fields.get("kvs", [])
    if not isinstance(found, list) or len(found) > 1:
        raise RemoteProtocolError("etcd answers with several values of one key")
    if not found:
        return None
    if not isinstance(found[0], dict) or _bytes(found[0], "key") != key:
        raise RemoteProtocolError("etcd answers with another key")
    value = _bytes(found[0], "value")
    if len(value) > VALUE_SIZE_MAX_BYTES:
        raise RemoteProtocolError(f"a value in etcd has {len(value)} bytes")
    revision = _number(found[0], "mod_revision")
    if not revision:
        raise RemoteProtocolError("a key in etcd has no revision")
    return Found(value, revision, _number(found[0], "lease"))


def _decode(body: bytes) -> Fields:
    if len(body) > ANSWER_SIZE_MAX_BYTES:
        raise RemoteProtocolError(f"etcd's answer has {len(body)} bytes")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise RemoteProtocolError("etcd's answer is not JSON") from None
    if not isinstance(fields, dict):
        raise RemoteProtocolError("etcd's answer is not a JSON object")
    return fields


def _object(fields: Fields, name: str) -> Fields:
    found = fields.get(name)
    if not isinstance(found, dict):
        raise RemoteProtocolError(f"etcd's answer lacks {name}")
    return found


def _number(fields: Fields, name: str) -> int:
    """Return a 64-bit number, 0 if it is left out."""
    found = fields.get(name, "0")
    is_text = isinstance(found, str) and found.isascii() and found.isdigit() and len(found) <= 19
    if not is_text or int(found) > _INT64_MAX:
        raise RemoteProtocolError(f"{name} in etcd's answer is not a number")
    return int(found)


def _bytes(fields: Fields, name: str) -> bytes:
    found = fields.get(name, "")
    if not isinstance(found, str):
        raise RemoteProtocolError(f"{name} in etcd's answer is not base64")
    try:
        return base64.b64decode(found, validate=True)
    except (binascii.Error, ValueError):
        raise RemoteProtocolError(f"{name} in etcd's answer is not base64") from None


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
