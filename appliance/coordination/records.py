"""The two keys that a pair has in etcd, and what they hold.

    PREFIX/CLUSTER/master   ends with the lease of the master     {"node": 1, "term": 7}
    PREFIX/CLUSTER/pair     stays                                 the same, and "in_sync": true

CLUSTER is the log's, in hexadecimal. Who creates `master` may serve. `pair` says who created it
last, and whether the other node may. Each writing of `pair` depends on its revision and on
`master`, so of two nodes that write at one time only one does. Layer 3; does no I/O.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from appliance.errors import RemoteProtocolError

TERM_MAX: Final = (1 << 63) - 1

NODES: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Holder:
    """The value of `master`: who may serve while the key is there."""

    node: int
    term: int


@dataclass(frozen=True, slots=True)
class PairRecord:
    """The value of `pair`.

    Attributes:
        node: who created `master` last.
        term: of that node since then.
        in_sync: the other node may create it, once it is gone. The master sets it false before it
            acknowledges what the other node may lack.
    """

    node: int
    term: int
    in_sync: bool


@dataclass(frozen=True, slots=True)
class PairKeys:
    """The names of the two keys of a pair."""

    master: bytes
    pair: bytes

    @property
    def both(self) -> tuple[bytes, bytes]:
        """In the order in which they are read."""
        return self.master, self.pair


def name_keys(prefix: str, cluster: bytes) -> PairKeys:
    """Return the keys of a cluster."""
    base = f"{prefix.rstrip('/')}/{cluster.hex()}"
    return PairKeys(f"{base}/master".encode(), f"{base}/pair".encode())


def encode_holder(holder: Holder) -> bytes:
    """Return the value of `master`."""
    return json.dumps({"node": holder.node, "term": holder.term}).encode()


def encode_pair(record: PairRecord) -> bytes:
    """Return the value of `pair`."""
    fields = {"node": record.node, "term": record.term, "in_sync": record.in_sync}
    return json.dumps(fields).encode()


def decode_holder(value: bytes) -> Holder:
    """Return what `master` holds.

    Raises:
        RemoteProtocolError: somebody else wrote it.
    """
    fields = _decode(value, "master")
    return Holder(_node(fields), _term(fields))


def decode_pair(value: bytes) -> PairRecord:
    """Return what `pair` holds.

    Raises:
        RemoteProtocolError: somebody else wrote it.
    """
    fields = _decode(value, "pair")
    in_sync = fields.get("in_sync")
    if not isinstance(in_sync, bool):
        raise RemoteProtocolError("the key pair in etcd has no in_sync")
    return PairRecord(_node(fields), _term(fields), in_sync)


def _decode(value: bytes, name: str) -> dict[str, Any]:
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise RemoteProtocolError(f"the key {name} in etcd is not a JSON object")
    return fields


def _node(fields: dict[str, Any]) -> int:
    node = fields.get("node")
    if type(node) is not int or node not in NODES:
        raise RemoteProtocolError("a key in etcd names no node of a pair")
    return node


def _term(fields: dict[str, Any]) -> int:
    term = fields.get("term")
    if type(term) is not int or not 0 <= term <= TERM_MAX:
        raise RemoteProtocolError("a key in etcd has no term")
    return term
