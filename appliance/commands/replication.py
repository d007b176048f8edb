"""`latermq replication`, `promote`, `handover`, `alone`, `solo`: the pair of nodes. Layer 6."""

from typing import Annotated, Any, Final

from appliance.commands import admin_client, usage
from appliance.commands.admin_client import SNAPSHOT_TIMEOUT_S
from appliance.commands.arguments import DEFAULT_ADMIN, Admin, Json
from appliance.commands.output import print_fields, print_json, print_line

PROMOTE_EXAMPLES: Final = """\
Examples:

\b
  latermq promote --admin 127.0.0.1:9192

A slave that has never caught up with its master is refused: --force promotes it with the part of
the log that it has. The rest is lost, unless the old master comes back. A node that serves as the
master stays so: a script may run this at any time.

With sync replication the promotion waits until the old master acknowledges nothing any more:
replication.lease_ms after it last heard this node, 2 seconds by default. With async replication
nothing stops it: make sure that it is off. It may come back as a slave; what it had and this node
lacks is then kept in its directory diverged/.
"""

REPLICATION_EXAMPLES: Final = """\
Examples:

\b
  latermq replication
  latermq replication --json | jq .lag_bytes
"""


Force = Annotated[
    bool, usage.Option("--force", help="Also if it has never caught up: what it lacks is lost.")
]


def promote(admin: Admin = DEFAULT_ADMIN, json: Json = False, force: Force = False) -> None:
    """Make a slave the master: it serves clients and delivers what is due."""
    wait_ms = admin_client.get(admin, "replication")["promotion_wait_ms"]
    if wait_ms and not json:
        print_line(f"waits up to {wait_ms} ms, until the lease of the old master is over")
    found = admin_client.get(admin, "replication")
    is_done = found["role"] == "master" and found["state"] != "comparing"
    if not is_done:
        body = {"force": force}
        found = admin_client.post(admin, "promote", body=body, timeout_s=SNAPSHOT_TIMEOUT_S)
    if json:
        print_json(found)
    elif is_done:
        print_line(f"node {found['node']} is the master already")
    else:
        print_line(f"node {found['node']} is the master now; its log ends at {found['end']}")


def handover(admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """Let the slave of this master be the master; nothing is lost. This node follows then."""
    found = admin_client.post(admin, "handover", body={}, timeout_s=SNAPSHOT_TIMEOUT_S)
    if json:
        print_json(found)
    else:
        print_line(f"the other node is the master now; the log ends at {found['end']}")


def alone(admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """Let a master serve that waits for the other node, which is off."""
    found = admin_client.post(admin, "alone", body={})
    if json:
        print_json(found)
    else:
        print_line(f"node {found['node']} goes on alone, as the master of term {found['term']}")


SlaveIsOff = Annotated[
    bool,
    usage.Option(
        "--slave-is-off", help="I made sure that the slave is off: it will not be promoted."
    ),
]


def solo(
    admin: Admin = DEFAULT_ADMIN, json: Json = False, slave_is_off: SlaveIsOff = False
) -> None:
    """Let the master of a sync pair go on without its slave, until that has caught up again."""
    found = admin_client.post(admin, "solo", body={"slave_is_off": slave_is_off})
    if json:
        print_json(found)
    else:
        print_line(f"node {found['node']} goes on alone: {found['promise']}")


def replication(admin: Admin = DEFAULT_ADMIN, json: Json = False) -> None:
    """Show the pair of master and slave, as one of them sees it."""
    found = admin_client.get(admin, "replication")
    if json:
        print_json(found)
    else:
        print_fields(_fields(found))


def _fields(found: Any) -> list[tuple[str, object]]:
    node = f", node {found['node']}" if found["node"] else ""
    peer = "" if found["peer"] is None else f" with {found['peer']}"
    fields: list[tuple[str, object]] = [
        ("role", f"{found['role']}{node}, term {found['term']}"),
        ("state", f"{found['state']}{peer}"),
        ("log", f"ends at {found['end']}"),
        ("promise", found["promise"]),
    ]
    if found["received"] is not None:
        fields.append(
            ("slave", f"has the log to {found['received']}, on its disk to {found['durable']}")
        )
    if found["state"] == "catch-up" and found["received"] is not None and found["end"]:
        rate = found["catch_up_max_bytes_per_s"]
        bound = f", at most {rate} bytes a second" if rate else ""
        fields.append(("catch-up", f"{100 * found['received'] // found['end']}%{bound}"))
    if found["caught_up"] is False:
        fields.append(("caught up", "never: `latermq promote` refuses it without --force"))
    if found["held_bytes"]:
        fields.append(("kept", f"{found['held_bytes']} bytes of the log for the slave alone"))
    if found["read_bytes"]:
        fields.append(("reads", f"consumers read {found['read_bytes']} bytes of records here"))
    if found["given_up"]:
        fields.append(("given up", "the slave lacks too much: it copies the log anew"))
    known = found["coordinator"]
    if known is not None:
        holder = "nobody" if known["holder"] is None else f"node {known['holder']}"
        sync = "in sync" if known["in_sync"] else "not in sync"
        fields.append(("etcd", f"{holder} has the key, the other node is {sync}"))
        fields.append(("standing", known["standing"]))
        if known["problem"]:
            fields.append(("problem", known["problem"]))
    if found["lag_bytes"] is not None:
        fields.append(("lag", f"{found['lag_bytes']} bytes"))
    if found["lease_left_ms"] is not None:
        left_ms = found["lease_left_ms"]
        fields.append(("lease", f"for {left_ms} ms more" if left_ms else "none"))
    if found["promotion_wait_ms"]:
        fields.append(("promotion", f"would wait {found['promotion_wait_ms']} ms for the lease"))
    if found["heard_ms_ago"] is not None:
        fields.append(("heard", f"{found['heard_ms_ago']} ms ago"))
    return fields


SOLO_EXAMPLES: Final = """\
Examples:

\b
  latermq solo --slave-is-off --admin 127.0.0.1:9192

Stop the slave first, or make sure that it is off, and say so: if it is promoted meanwhile, there
are two masters, and what this one acknowledged alone is lost.
"""

HANDOVER_EXAMPLES: Final = """\
Examples:

\b
  latermq handover --admin 127.0.0.1:9192

At the master, while its slave is up to date. Clients lose their connections and go on at the other
node. If it fails, the message says who is the master; nothing is lost in any case.
"""

HANDOVER: Final = usage.Command(handover, HANDOVER_EXAMPLES)
ALONE_EXAMPLES: Final = """\
Examples:

\b
  latermq alone --admin 127.0.0.1:9192

A master of a pair that was stopped does not know whether the other node was promoted since. Make
sure that it was not, and that it is off: else there are two masters. Whatever the other node has,
and this one lacks, is then lost, or kept in its directory diverged/.
"""

ALONE: Final = usage.Command(alone, ALONE_EXAMPLES)
PROMOTE: Final = usage.Command(promote, PROMOTE_EXAMPLES)
SOLO: Final = usage.Command(solo, SOLO_EXAMPLES)
REPLICATION: Final = usage.Command(replication, REPLICATION_EXAMPLES)
