"""A slave whose log is damaged, before its first write: it gets these parts from its master.

It asks until the master answers. Layer 6.
"""

import asyncio
import enum
import logging
from typing import Final

from appliance.admin.status import ReplicationStatus
from appliance.broker import Broker
from appliance.coordination.fail_over import FailOver
from appliance.errors import ConfigError, RemoteProtocolError, ReplicaError, RoleError
from appliance.log_text import quoted
from appliance.pair.coordination import PeerView
from appliance.pair.link_settings import link_limits
from appliance.pair.slave_role import NO_MASTER
from appliance.replication import repair
from appliance.replication.facts import Facts, Role
from appliance.store.repair import Repair
from appliance.units import MS_PER_SECOND

ASK_S: Final = 1.0
"""Between two attempts."""

WAITS: Final = (
    "its log is damaged, and it waits for its master, from which it gets these parts: start the "
    "master. If that one is gone for good, this may be the only copy: `latermq check` shows what "
    "is damaged"
)

_log = logging.getLogger(__name__)


class Repaired(enum.Enum):
    """How a repair ended."""

    STARTS_AGAIN = enum.auto()
    """Damaged bytes were replaced: a new start reads and checks them."""
    IMPOSSIBLE = enum.auto()
    STOPPED = enum.auto()


class RepairingRole:
    """See the module."""

    def __init__(self, broker: Broker, log: Repair, secret: bytes) -> None:
        """Prepare.

        Args:
            broker: its start has come to the repair.
            log: has damaged parts.
            secret: what both nodes know.

        Raises:
            ConfigError: it does not know where its master is.
        """
        master = broker.role_file.peer
        if master is None:
            raise ConfigError(NO_MASTER)
        self._broker, self._log, self._secret = broker, log, secret
        self._config, self._master = broker.config, master
        self._reason = ""
        self._failure: Exception | None = None
        self._ended = asyncio.Event()

    async def repair(self, stop: asyncio.Event) -> Repaired:
        """Get the damaged parts, or wait until `stop` is set.

        Raises:
            StorageError: the disk failed; the process must end.
        """
        _log.warning("serves nobody yet: %s", WAITS)
        work = asyncio.ensure_future(self._repair())
        waits = [asyncio.ensure_future(each.wait()) for each in (stop, self._ended)]
        await asyncio.wait([work, *waits], return_when=asyncio.FIRST_COMPLETED)
        for each in (work, *waits):
            each.cancel()
        await asyncio.wait([work])
        if self._failure is not None:
            raise self._failure
        return Repaired.STOPPED if work.cancelled() else work.result()

    async def _repair(self) -> Repaired:
        facts = Facts(self._broker.role.term, Role.REPAIRING)
        silence_s = link_limits(self._config).silence_ms / MS_PER_SECOND
        while True:
            try:
                await repair.repair(
                    self._master, self._log, facts, self._secret, silence_s=silence_s
                )
            except ReplicaError as error:
                _log.error("cannot be repaired: %s", error.message)
                return Repaired.IMPOSSIBLE
            except RemoteProtocolError as error:
                self._say(error.message)
            except (OSError, UnicodeError) as error:
                self._say(getattr(error, "strerror", None) or str(error) or "it does not answer")
            else:
                return Repaired.STARTS_AGAIN
            await asyncio.sleep(ASK_S)

    def _say(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            _log.warning("is not repaired yet: %s: %s", self._master, quoted(reason))

    def look(self) -> PeerView:
        """See `CoordinatedRole`: such a slave is never promoted."""
        return PeerView()

    def act(self, decides: FailOver) -> None:
        """See `CoordinatedRole`."""

    def fail(self, error: Exception) -> None:
        """See `CoordinatedRole`."""
        self._failure = error
        self._ended.set()

    async def promote(self, *, is_forced: bool = False) -> None:
        """See `Pair`."""
        raise RoleError(f"this slave cannot be promoted: {WAITS}")

    async def hand_over(self) -> None:
        """See `Pair`."""
        raise RoleError("this node is a slave: hand over at the master")

    def go_alone(self) -> None:
        """See `Pair`."""
        raise RoleError("this node is a slave: promote it to let it serve")

    def go_solo(self, *, is_slave_off: bool) -> None:
        """See `Pair`."""
        raise RoleError("this node is a slave: promote it to let it serve")

    def status(self) -> ReplicationStatus:
        """See `Pair`."""
        reason = f" ({self._master}: {self._reason})" if self._reason else ""
        return ReplicationStatus(
            role="slave",
            term=self._broker.role.term,
            mode=self._config.replication,
            solo=False,
            node=self._log.node,
            state="repairing",
            peer=None,
            end=self._log.end_pos,
            received=None,
            durable=None,
            lag_bytes=None,
            heard_ms_ago=None,
            promise=f"this node serves no client: {WAITS}{reason}",
            caught_up=False,
        )
