"""A model of what etcd does with the requests of `appliance.coordination`, in virtual time.

`tests/system/replication/test_etcd.py` compares it with a real one.
"""

import base64
import json
from dataclasses import dataclass, field
from typing import Any

from appliance.coordination.etcd_wire import Call


class Refused(Exception):
    """The request is refused with a status of 400 to 499."""


@dataclass
class Key:
    value: str
    mod_revision: int
    lease: int


@dataclass
class EtcdModel:
    """One member.

    Attributes:
        keys: what exists now.
    """

    keys: dict[str, Key] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)
    _ttls: dict[int, int] = field(default_factory=dict)
    _revision: int = 1
    _last_lease: int = 100

    def handle(self, call: Call, now_ms: int) -> bytes:
        """Do one request; return the body of its answer.

        Raises:
            Refused: it is not done.
        """
        self.expire(now_ms)
        fields = json.loads(call.body)
        name = call.path.removeprefix("/v3/")
        if name == "lease/grant":
            return self._grant(int(fields["TTL"]), now_ms)
        if name == "lease/keepalive":
            return self._keep_alive(int(fields["ID"]), now_ms)
        if name == "lease/revoke":
            return self._revoke(int(fields["ID"]))
        assert name == "kv/txn"
        return self._transact(fields)

    def expire(self, now_ms: int) -> None:
        """End the leases whose time is over."""
        for lease in [lease for lease, end_ms in self._ends.items() if end_ms <= now_ms]:
            self._end(lease)

    def value(self, key: bytes) -> Any:
        """What a key holds, as JSON; None if it does not exist."""
        found = self.keys.get(base64.b64encode(key).decode())
        return None if found is None else json.loads(base64.b64decode(found.value))

    def _grant(self, ttl_s: int, now_ms: int) -> bytes:
        self._last_lease += 1
        ttl_s = max(ttl_s, 2)
        self._ttls[self._last_lease] = ttl_s
        self._ends[self._last_lease] = now_ms + ttl_s * 1000
        return _body({"ID": str(self._last_lease), "TTL": str(ttl_s)})

    def _keep_alive(self, lease: int, now_ms: int) -> bytes:
        if lease not in self._ends:
            return _body({"result": {"ID": str(lease)}})
        self._ends[lease] = now_ms + self._ttls[lease] * 1000
        return _body({"result": {"ID": str(lease), "TTL": str(self._ttls[lease])}})

    def _revoke(self, lease: int) -> bytes:
        if lease not in self._ends:
            raise Refused("requested lease not found")
        self._end(lease)
        return _body({})

    def _end(self, lease: int) -> None:
        del self._ends[lease], self._ttls[lease]
        gone = [key for key, each in self.keys.items() if each.lease == lease]
        for key in gone:
            del self.keys[key]
        self._revision += bool(gone)

    def _transact(self, fields: dict[str, Any]) -> bytes:
        is_done = True
        for each in fields["compare"]:
            assert (each["target"], each["result"]) == ("MOD", "EQUAL")
            found = self.keys.get(each["key"])
            is_done &= int(each["mod_revision"]) == (0 if found is None else found.mod_revision)
        requests = fields["success" if is_done else "failure"]
        puts = [each["requestPut"] for each in requests if "requestPut" in each]
        if any(put["lease"] and put["lease"] not in self._ends for put in puts):
            raise Refused("requested lease not found")
        self._revision += bool(puts)
        responses: list[dict[str, Any]] = []
        for each in requests:
            if "requestPut" in each:
                put = each["requestPut"]
                self.keys[put["key"]] = Key(put["value"], self._revision, put["lease"])
                responses.append({"response_put": {"header": {}}})
            else:
                responses.append({"response_range": self._range(each["requestRange"]["key"])})
        answer: dict[str, Any] = {"responses": responses} if responses else {}
        return _body(answer | ({"succeeded": True} if is_done else {}))

    def _range(self, key: str) -> dict[str, Any]:
        found = self.keys.get(key)
        if found is None:
            return {"header": {}}
        one = {"key": key, "value": found.value, "mod_revision": str(found.mod_revision)}
        if found.lease:
            one["lease"] = str(found.lease)
        return {"header": {}, "kvs": [one], "count": "1"}


def _body(fields: dict[str, Any]) -> bytes:
    return json.dumps({"header": {}} | fields).encode()
