"""This node and the coordinator: what `FailOver` is told of the pair, and what follows. Layer 6.

It begins when the node knows its cluster, and lasts as long as the service. One of the three roles
is bound to it at any time.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, Protocol

from appliance.admin.status import CoordinatorStatus
from appliance.config.config import Config
from appliance.coordination.coordinator import Coordinator
from appliance.coordination.etcd import Etcd, EtcdFiles
from appliance.coordination.fail_over import FailOver
from appliance.coordination.records import name_keys
from appliance.coordination.standing import Standing
from appliance.errors import RoleError
from appliance.store.role_file import RoleRecord
from appliance.system.clock import Clock
from appliance.units import MS_PER_SECOND, NS_PER_MS

REQUESTS_IN_LEASE: Final = 6
REQUEST_MAX_MS: Final = 2_000
"""A request to one member takes at most a part of the lease, and no longer than that."""

GRACE_SILENCES: Final = 2
"""For so many silences an async master that compares waits for a slave that may have more."""

ORDER_LIMIT_S: Final = 10.0
"""So long an operator's promotion may wait for etcd."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeerView:
    """What a role knows at one moment.

    Attributes:
        heard_until_ms: boottime until which the peer counts as heard; see `FailOver.hear`.
        may_follow: of a slave: it has caught up in this process.
        wants_in_sync: of a master; see `FailOver`.
        has_yielded: the other node may be the master, whatever etcd says.
        refused_ms: boottime, ms, at which the other node said last that it is no master; 0 before.
    """

    heard_until_ms: int = 0
    may_follow: bool = False
    wants_in_sync: bool | None = None
    has_yielded: bool = False
    refused_ms: int = 0


class CoordinatedRole(Protocol):
    """What each role is to a coordination."""

    def look(self) -> PeerView:
        """Return what the role knows now."""

    def act(self, decides: FailOver) -> None:
        """Do what follows from a decision; called often."""

    def fail(self, error: Exception) -> None:
        """End the work of the role: the coordination has a bug, and decides nothing any more."""


class Coordination:
    """See the module.

    Attributes:
        decides: the decisions; None before the cluster is known.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        """Prepare; nothing is asked before `begin`.

        Raises:
            ConfigError: a file for TLS cannot be used.
        """
        self._config, self._clock = config, clock
        lease_ms = config.etcd_lease_ms
        self._etcd = Etcd(
            config.etcd,
            files=EtcdFiles(config.etcd_ca_file, config.etcd_certificate_file),
            timeout_ms=min(REQUEST_MAX_MS, lease_ms // REQUESTS_IN_LEASE),
        )
        self._coordinator: Coordinator | None = None
        self._role: CoordinatedRole | None = None
        self._began_ms = self.now_ms()
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self.decides: FailOver | None = None

    def now_ms(self) -> int:
        """Return boottime in ms."""
        return self._clock.boottime_ns() // NS_PER_MS

    def begin(self, *, cluster: bytes, node: int, role: RoleRecord, is_continued: bool) -> None:
        """Begin to ask etcd, if that has not begun.

        Args:
            cluster: of the log.
            node: of this node.
            role: what its role file says.
            is_continued: it was the master until now, so it need not wait for its slave.
        """
        if self._coordinator is not None:
            return
        self.decides = FailOver(
            name_keys(self._config.etcd_prefix, cluster),
            node=node,
            role=role,
            lease_ms=self._config.etcd_lease_ms,
        )
        self.decides.may_go_alone = is_continued
        self._coordinator = Coordinator(
            self._etcd, self.decides, self._clock, look=self._look, act=self._act
        )
        self._coordinator.failure.add_done_callback(lambda done: self._fail(done.result()))
        self._coordinator.start()

    def _fail(self, error: Exception) -> None:
        self._error = error
        if self._role is not None:
            self._role.fail(error)

    def bind(self, role: CoordinatedRole) -> None:
        """Ask and tell this role from now on."""
        self._role = role
        if self._error is not None:
            role.fail(self._error)
        if self._coordinator is not None:
            self._coordinator.wake()

    async def stop(self) -> None:
        """Ask no more. The key stays until its lease ends."""
        self._role = None
        if self._coordinator is not None:
            await self._coordinator.stop()

    def status(self) -> CoordinatorStatus:
        """Return what etcd said last."""
        decides = self.decides
        if decides is None:
            return CoordinatorStatus("waits for the log's cluster", None, None, None, 0, "")
        holder, pair = decides.holder, decides.pair
        return CoordinatorStatus(
            standing=decides.standing.value,
            holder=None if holder is None else holder.node,
            term=None if pair is None else pair.term,
            in_sync=None if pair is None else pair.in_sync,
            key_left_ms=max(0, decides.key_until_ms - self.now_ms()),
            problem=decides.problem,
        )

    def _look(self) -> None:
        decides, role = self.decides, self._role
        assert decides is not None
        if role is None:
            return
        view = role.look()
        decides.hear(view.heard_until_ms)
        decides.may_follow = view.may_follow
        decides.wants_in_sync = view.wants_in_sync
        grace_ms = GRACE_SILENCES * self._config.replication_timeout_ms
        is_late = self.now_ms() - self._began_ms >= grace_ms
        decides.refused_ms = view.refused_ms
        if not view.has_yielded and self._config.replication == "async" and is_late:
            decides.may_go_alone = True

    def _act(self) -> None:
        if self._role is not None:
            assert self.decides is not None
            self._role.act(self.decides)
        self._changed.set()

    async def order(self) -> None:
        """Take the key for a slave that an operator promotes.

        Raises:
            RoleError: somebody else has it, or etcd does not answer.
        """
        decides = self.decides
        if decides is None or self._coordinator is None:
            raise RoleError("this node does not know its cluster yet")
        decides.order()
        self._coordinator.wake()
        deadline_ms = self.now_ms() + int(ORDER_LIMIT_S * MS_PER_SECOND)
        while decides.standing not in (Standing.SUCCEEDS, Standing.HOLDS):
            if decides.refusal:
                raise RoleError(
                    f"{decides.refusal}: stop that node, or promote this one with --force if it is "
                    "off for good"
                )
            left_ms = deadline_ms - self.now_ms()
            if left_ms <= 0:
                raise RoleError(
                    f"etcd does not answer: {decides.problem or 'no answer yet'}. Make sure that "
                    "the old master is off, then promote with --force"
                )
            await self._wait(left_ms)

    async def confirm(self, stop: asyncio.Event) -> bool:
        """Wait until the key is certainly this node's, so that it may be promoted.

        Returns:
            Whether it is; False if `stop` came first, or the other node took it.
        """
        decides = self.decides
        assert decides is not None
        while not stop.is_set() and not decides.is_passed_over:
            if decides.standing is Standing.SUCCEEDS and self.now_ms() < decides.key_until_ms:
                return True
            await self._wait(100)
        return False

    async def licensed(self, *ends: asyncio.Event) -> None:
        """Wait until a master may serve, or one of `ends` is set."""
        decides = self.decides
        assert decides is not None
        is_said = False
        while not any(end.is_set() for end in ends):
            if decides.standing in (Standing.HOLDS, Standing.LEANS):
                return
            if not is_said:
                is_said = True
                _log.warning("serves nobody yet: has neither the key in etcd nor its slave")
            await self._wait(100)

    async def _wait(self, limit_ms: int) -> None:
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), limit_ms / MS_PER_SECOND)
        except TimeoutError:
            return
