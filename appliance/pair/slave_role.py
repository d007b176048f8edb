"""A slave: what it does from the end of its replay until its promotion. Layer 6."""

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable
from typing import Final

from appliance.admin.status import ReplicationStatus
from appliance.broker import Broker
from appliance.coordination.fail_over import FailOver
from appliance.coordination.standing import Standing
from appliance.errors import ConfigError, NotReadyError, ReplicaError, RoleError
from appliance.pair.coordination import Coordination, PeerView
from appliance.pair.link_settings import link_limits, own_listen, since_ms
from appliance.pair.slave_front import SlaveFront
from appliance.replication import lease
from appliance.replication.facts import Facts, Role
from appliance.replication.slave import Following, HandOver, ReplicationClient
from appliance.replication.states import State
from appliance.replication.wire import Welcome
from appliance.run_merging import RunMerging
from appliance.store.follower import Follower
from appliance.store.state.checkpointer import CheckpointJob
from appliance.thread_jobs import ThreadJobs
from appliance.timer_loading import TimerLoading
from appliance.units import MS_PER_SECOND, NS_PER_MS

TEND_S: Final = 0.1
"""Between two looks at whether a slave's checkpoint is due."""

LOOK_MS: Final = 50
"""Between two looks at a lease: the clock of the loop is another one, and stands in a suspend."""

SLICE_PAUSE_S: Final = 0.002
"""Between two slices of one."""

NO_MASTER: Final = (
    "this node is a slave, as its role file says, and knows no address of its master: set "
    "replication.peer"
)

_log = logging.getLogger(__name__)


class Outcome(enum.Enum):
    """How the following of a slave ended."""

    PROMOTED = enum.auto()
    STOPPED = enum.auto()
    STARTS_AGAIN = enum.auto()
    """The log was cut below what was applied."""


class SlaveRole(HandOver):
    """A slave, until it is promoted or stops."""

    def __init__(
        self,
        broker: Broker,
        follower: Follower,
        secret: bytes,
        caught_up: Callable[[], None],
        front: SlaveFront | None = None,
        *,
        coordination: Coordination | None = None,
    ) -> None:
        """Prepare to follow.

        Args:
            broker: its start has come to the follower.
            follower: what follows.
            secret: what both nodes know.
            caught_up: called once, when the slave has caught up for the first time.
            front: serves clients meanwhile.
            coordination: must let it be promoted, unless an operator insists.

        Raises:
            ConfigError: it does not know where its master is.
        """
        config = broker.config
        master = broker.role_file.peer
        if master is None:
            raise ConfigError(NO_MASTER)
        self._config, self._clock, self._follower = config, broker.clock, follower
        self._master = master
        self._ended = asyncio.Event()
        self._over = asyncio.Event()
        self._is_wanted = self._needs_key = self._is_current = self._is_handed = False
        self._coordination = coordination
        self._failure: Exception | None = None
        self._on_caught_up, self._front = caught_up, front
        self._is_ready_due = False
        self._began_ms = self._now_ms()
        loop = asyncio.get_running_loop()
        self._served: asyncio.Future[None] = loop.create_future()
        self._loading = TimerLoading(
            follower.timer_memory, broker.clock, loop, self._guard, lambda: None
        )
        self._merging = RunMerging(ThreadJobs(loop, self._guard), follower.checkpoints)
        self._client = ReplicationClient(
            follower,
            master,
            secret,
            clock=broker.clock,
            lines=broker.client_log,
            changed=self._changed,
            caught_up=self._note_caught_up,
            limits=link_limits(config),
            facts=self._facts,
            welcomed=self._note_welcome,
            hands_over=self,
        )

    def _note_welcome(self, welcome: Welcome) -> None:
        self._follower.adopt_term(welcome.facts.term, self._master)
        if self._coordination is not None and self._coordination.decides is not None:
            self._coordination.decides.note_term(welcome.facts.term)

    def look(self) -> PeerView:
        """See `CoordinatedRole`."""
        heard_ms = self._client.following.heard_ms
        silence_ms = self._config.replication_timeout_ms
        return PeerView(
            heard_until_ms=0 if heard_ms is None else heard_ms + silence_ms,
            may_follow=self._is_current and self._follower.has_caught_up,
        )

    def act(self, decides: FailOver) -> None:
        """See `CoordinatedRole`."""
        if decides.standing is Standing.SUCCEEDS and not self._is_wanted:
            _log.warning("has the key in etcd, in term %d: is promoted", decides.term)
            self._is_wanted = self._needs_key = True
            self._ended.set()

    def fail(self, error: Exception) -> None:
        """See `CoordinatedRole`."""
        self._failure = error
        self._ended.set()

    async def _await_key(self, stop: asyncio.Event) -> bool:
        """Wait until the coordinator lets this slave be promoted; return whether it does."""
        if self._coordination is None or not self._needs_key:
            return True
        return await self._coordination.confirm(stop)

    def _note_caught_up(self) -> None:
        self._is_current = True
        self._follower.note_caught_up()
        self._is_ready_due = True

    def _now_ms(self) -> int:
        return self._clock.boottime_ns() // NS_PER_MS

    def _facts(self) -> Facts:
        lease_ms = self._config.replication_lease_ms
        endpoint = None if self._front is None else self._front.routes.me.at
        listen = own_listen(self._config)
        return Facts(self._follower.term, Role.SLAVE, endpoint, lease_ms=lease_ms, listen=listen)

    def lease_left_ms(self) -> int:
        """Return how long the master of a sync pair may hold a lease that this slave renewed, ms.

        An earlier process in this directory may have renewed one just before this one began.
        """
        known = self._client.following
        lease_ms = self._config.replication_lease_ms if known.lease_ms is None else known.lease_ms
        earlier_ms = self._began_ms + lease.wait_ms(lease_ms) if lease_ms else 0
        return max(0, max(earlier_ms, known.lease_ends_ms) - self._now_ms())

    async def _outlast_lease(self, stop: asyncio.Event) -> bool:
        """Wait until the master acknowledges nothing any more; return False if `stop` came first.

        The connection is closed, so that nothing renews the lease.
        """
        if left_ms := self.lease_left_ms():
            _log.warning("the promotion waits %d ms for the lease of %s", left_ms, self._master)
        while (left_ms := self.lease_left_ms()) and not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(left_ms, LOOK_MS) / MS_PER_SECOND)
        return not stop.is_set()

    async def follow(self, stop: asyncio.Event) -> Outcome:
        """Follow until the promotion, or until `stop` is set.

        Raises:
            StorageError: the disk failed; the process must end.
        """
        self._client.start()
        tending = asyncio.ensure_future(self._tend_log())
        waits = [
            asyncio.ensure_future(each)
            for each in (stop.wait(), self._ended.wait(), asyncio.shield(self._client.failure))
        ]
        await asyncio.wait([*waits, tending], return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        await self._client.stop()
        self._over.set()
        try:
            await tending
        finally:
            if self._front is not None:
                await self._front.stop()
        # No thread uses the files from here on.
        if self._client.failure.done():
            raise self._client.failure.result()
        if self._failure is not None:
            raise self._failure
        if self._follower.wants_start:
            return Outcome.STARTS_AGAIN
        if not self._is_wanted:
            return Outcome.STOPPED
        return Outcome.PROMOTED if self._follower.is_promoted else await self._begin_term(stop)

    async def _begin_term(self, stop: asyncio.Event) -> Outcome:
        """Be promoted once neither the lease of the master nor the coordinator forbids it."""
        if not await self._outlast_lease(stop):
            return Outcome.STOPPED
        if not await self._await_key(stop):
            return Outcome.STOPPED if stop.is_set() else Outcome.STARTS_AGAIN
        self._promote(has_key=self._needs_key)
        return Outcome.PROMOTED

    def _guard(self, step: Callable[[], None]) -> None:
        if self._failure is not None:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 (the root of a callback: it ends the process)
            self.fail(error)

    async def _tend_log(self) -> None:
        """Take checkpoints, free segments and load timers until the following ends.

        A thread does the I/O. Clients are served from the first frame on.

        Raises:
            StorageError: the disk failed.
            AddressError, ConfigError: the address for clients cannot be used.
        """
        follower, front = self._follower, self._front
        while not self._over.is_set():
            if front is not None:
                await front.serve(self._client.following)
            if self._is_ready_due:  # not before clients are served
                self._is_ready_due = False
                self._on_caught_up()
            if self._is_handed:
                self._client.ready()
            if not self._is_handed:
                self._merging.step()  # between two checkpoints
            job = None if self._is_handed else follower.step_job()
            if job is not None:
                await asyncio.to_thread(job.run)
                follower.end_job(job)
                if isinstance(job, CheckpointJob) and job.error is not None:
                    _log.warning("checkpoint failed, will be retried: %s", job.error)
            self._loading.step()
            pause_s = SLICE_PAUSE_S if follower.checkpoints.is_capturing else TEND_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), pause_s)
        await self._loading.finish()
        error = await self._merging.stop()
        if error is not None:
            raise error

    def prepare(self, term: int) -> None:
        """Take no checkpoint any more; `_tend_log` says when none is written.

        Raises:
            ReplicaError: as `take`, while the master still serves.
        """
        self._check_term(term)
        self._is_handed = True

    def _check_term(self, term: int) -> None:
        if term != self._follower.next_term:
            raise ReplicaError(f"would begin term {self._follower.next_term}, not {term}")

    def take(self, term: int) -> None:
        """Be the master, which has yielded; nothing of the log is in flight.

        It waits for no lease: the master serves nobody since before it yielded. Nor does it ask
        etcd, which hears of it afterwards: a node that yielded does not serve because it has the
        key.

        Raises:
            ReplicaError: the term is not that of the next promotion here.
            StorageError: the disk failed.
        """
        self._check_term(term)
        _log.warning("takes over: the master yields")
        self._promote(is_handed=True)
        self._is_wanted = True
        self._ended.set()

    def _promote(self, *, has_key: bool = False, is_handed: bool = False) -> None:
        decides = None if self._coordination is None else self._coordination.decides
        key_term = decides.term if has_key and decides is not None else 0
        self._follower.promote(key_term)
        if decides is not None:
            decides.promoted(self._follower.term, is_handed=is_handed)

    def _changed(self, following: Following) -> None:
        if following.state is State.LOST:
            self._is_handed = False
        self._follower.head.note_master(following.start_pos, following.committed_pos)
        if self._front is not None:
            self._front.note(following)
        else:
            self._follower.show(following.visible_pos)
        if self._follower.wants_start:
            self._ended.set()

    async def promote(self, *, is_forced: bool = False) -> None:
        """See `Pair`."""
        if not self._follower.has_log:
            raise RoleError(
                f"this slave has nothing of the log of {self._master} yet: a promotion would begin "
                "a new cluster. Wait until it is connected, or start a broker without --role slave"
            )
        if not self._follower.has_caught_up:
            if not is_forced:
                raise RoleError(
                    f"this slave has never caught up with {self._master}: {self._missing()}. Let "
                    "it catch up, or promote it with --force to go on without what is missing"
                )
            _log.warning("promoted by force, without ever having caught up: %s", self._missing())
        if self._coordination is not None and not is_forced:
            await self._coordination.order()
            self._needs_key = True
        self._is_wanted = True
        self._ended.set()
        await asyncio.shield(self._served)

    def _missing(self) -> str:
        """What the promotion of a slave that has never caught up would lose, as far as known."""
        known, end = self._client.following, self._follower.end_pos
        if known.heard_ms is None or not known.committed_pos:
            return f"it has the log to {end}; how much is missing is not known"
        missing_bytes = max(0, known.committed_pos - end)
        return (
            f"it has the log to {end}, and the master had it to {known.committed_pos}, so at least "
            f"{missing_bytes} bytes are missing"
        )

    async def hand_over(self) -> None:
        """See `Pair`."""
        raise RoleError("this node is a slave: hand over at the master")

    def go_alone(self) -> None:
        """See `Pair`."""
        raise RoleError("this node is a slave: promote it to let it serve")

    def go_solo(self, *, is_slave_off: bool) -> None:
        """See `Pair`."""
        raise RoleError("this node is a slave: promote it to let it serve")

    def serves(self) -> None:
        """Note that this node serves clients as a master now."""
        if not self._served.done():
            self._served.set_result(None)

    def ends(self) -> None:
        """Note that it never will."""
        if not self._served.done():
            self._served.set_exception(NotReadyError("the broker is stopping"))
            self._served.exception()  # nobody may wait for it

    def _promise(self) -> str:
        if self._front is not None and self._front.serves_reads:
            return "consumers may read what the master shows; nothing is accepted"
        return "nothing is accepted, and nothing served but where the master is"

    def status(self) -> ReplicationStatus:
        """See `Pair`."""
        known = self._client.following
        is_lost = known.state is State.LOST
        return ReplicationStatus(
            role="slave",
            term=self._follower.term,
            mode=self._config.replication,
            solo=False,
            node=self._follower.node,
            state="waiting" if is_lost else known.state.value,
            peer=None if is_lost else str(self._master),
            end=self._follower.end_pos,
            received=self._follower.received_pos,
            durable=self._follower.durable_pos,
            lag_bytes=None if known.heard_ms is None else known.lag_bytes,
            heard_ms_ago=since_ms(self._clock, known.heard_ms),
            promise=self._promise(),
            promotion_wait_ms=self.lease_left_ms(),
            caught_up=self._follower.has_caught_up,
            read_bytes=0 if self._front is None else self._front.read_bytes,
        )
