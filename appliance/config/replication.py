"""The pair of master and slave: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from appliance.config.endpoint import Endpoint, read_endpoints
from appliance.config.setting import (
    Address,
    choice,
    number,
    read_address,
    read_key_prefix,
    read_optional_address,
    read_optional_path,
    value,
)
from appliance.units import GIB, MS_PER_MINUTE

_ADDRESS: Final = "HOST:PORT, an IPv6 host in brackets"


@dataclass(frozen=True, kw_only=True)
class ReplicationSettings:
    """The pair of master and slave."""

    role: Literal["master", "slave"] = choice(
        "master",
        "replication.role",
        ("master", "slave"),
        "A slave follows the log of its master. Until it is promoted it accepts nothing: it names "
        "the master to clients, and lets consumers read.",
        flag="--role",
    )
    replication: Literal["none", "async", "sync"] = choice(
        "none",
        "replication.mode",
        ("none", "async", "sync"),
        "A master sends its log to a slave. async: what is acknowledged may not be there yet. "
        "sync: nothing is acknowledged with acks=all, and nothing readable, before the slave has "
        "it.",
        flag="--replication",
    )
    replication_listen: Address = value(
        Address("127.0.0.1", 9292),
        "replication.listen",
        read_address,
        _ADDRESS,
        "Where a master waits for its slave, if `mode` is not none.",
        flag="--replication-listen",
    )
    master: Address | None = value(
        None,
        "replication.master",
        read_optional_address,
        _ADDRESS,
        "The `listen` address of the master; a slave needs it.",
        flag="--master",
    )
    peer: Address | None = value(
        None,
        "replication.peer",
        read_optional_address,
        _ADDRESS,
        "The `listen` address of the other node. A master asks there whether that one is the "
        "master now, and follows it if so. For a slave it is `master`.",
    )
    node: int = number(
        0,
        "replication.node",
        (0, 2),
        "Which of the two nodes this is; the other one has the other number. 0: as at the first "
        "start in this directory, 1 for a master and 2 for a slave.",
        unit="",
    )
    replication_secret_file: Path | None = value(
        None,
        "replication.secret_file",
        read_optional_path,
        "a file with at least 16 bytes, the same on both nodes",
        "Proves to each node that the other one may have the log. Required unless both are on one "
        "machine.",
    )
    replication_timeout_ms: int = number(
        2_000,
        "replication.timeout_ms",
        (100, MS_PER_MINUTE),
        "A peer that says nothing for so long is lost.",
    )
    slave_reads_percent: int = number(
        40,
        "replication.slave_reads_percent",
        (0, 100),
        "A consumer that is further behind the end of the log than this part of the machine's "
        "memory reads from the slave, if it can (KIP-392). 0: only those in the slave's rack do.",
    )
    replication_lease_ms: int = number(
        2_000,
        "replication.lease_ms",
        (100, MS_PER_MINUTE),
        "A sync master whose slave has not answered for so long acknowledges and delivers nothing; "
        "a promotion waits a little longer. The same on both nodes.",
    )
    etcd: tuple[Endpoint, ...] = value(
        (),
        "replication.etcd",
        read_endpoints,
        "URLs such as http://127.0.0.1:2379, with spaces between them",
        "The members of an etcd cluster, which lets one node be the master at any time, and "
        "promotes the slave of a lost one. Without it only an operator promotes. The same on both "
        "nodes.",
    )
    etcd_prefix: str = value(
        "/latermq",
        "replication.etcd_prefix",
        read_key_prefix,
        "up to 200 letters, digits and / . _ -",
        "What the keys in etcd begin with; the log's cluster id follows.",
    )
    etcd_lease_ms: int = number(
        5_000,
        "replication.etcd_lease_ms",
        (2_000, MS_PER_MINUTE),
        "How long the key in etcd outlives its master, rounded up to seconds: a lost master is "
        "replaced after that. One that etcd does not answer for so long, nor its slave, stops.",
    )
    etcd_ca_file: Path | None = value(
        None,
        "replication.etcd_ca_file",
        read_optional_path,
        "a file with certificates in PEM",
        "Who may sign the certificates of etcd with https; by default as the system has it.",
    )
    etcd_certificate_file: Path | None = value(
        None,
        "replication.etcd_certificate_file",
        read_optional_path,
        "a file with a certificate and its private key in PEM",
        "Shown to an etcd that asks for one.",
    )
    keep_for_slave_bytes: int = number(
        16 * GIB,
        "replication.keep_for_slave_bytes",
        (0, 1 << 50),
        "How much of its log a master keeps beyond retention because a connected slave lacks it. "
        "Beyond that, or on a full disk, the slave copies the log anew.",
    )
    catch_up_max_bytes_per_s: int = number(
        0,
        "replication.catch_up_max_bytes_per_s",
        (0, 1 << 40),
        "A slave that is new, or was away for long, takes at most so much of the log in a second "
        "while no client waits for it: in async mode, or solo. 0: as much as it can.",
        unit="bytes a second",
    )
