"""What a slave serves: the records that its master shows and that it has durably itself.

It reads the log and nothing else. Requests that write or coordinate are refused before they come to
anything here; the produce path that a session needs has a log and topics of its own, which stay
empty. Layer 4.
"""

from collections.abc import Sequence
from typing import Final

from _core.log.pointers import Pointers
from _core.log.tail import LogTail
from _core.paths.parked_fetch import ParkedFetch
from _core.paths.session import Session
from _core.paths.timer_quota import TimerQuota
from _core.queue.partition import Partition
from _core.state.projections import Projections
from _core.state.writer import LogWriter
from appliance import broker_metrics
from appliance.client_log import ClientLog
from appliance.client_paths import ControlPlane, make_fetch_path, make_produce_path
from appliance.config.config import Config
from appliance.cron_rules import CronRules
from appliance.errors import NotReadyError
from appliance.facade import Facade
from appliance.metrics import Metrics
from appliance.model import ColdPlace
from appliance.offset_search import Decompress, OffsetSearch
from appliance.store.cold_reads import ColdRead
from appliance.store.damage import Damage
from appliance.store.follower import Follower
from appliance.store.log.commit_log import CommitLog
from appliance.store.message_store import MessageStore
from appliance.system.clock import Clock
from appliance.topics import Topics

NO_LIMIT: Final = (1 << 63) - 1

ID_KEY: Final = bytes(16)
"""Of an index that stays empty."""


class SlaveBroker:
    """A slave, as its clients see it. It begins shut: see `follow`.

    Attributes:
        config, clock, metrics, client_log: of the broker that this slave may become.
        topics, groups, search: the parts that handlers of the control plane use; nothing is changed
            through them.
        leads: False: another broker accepts records.
        replicated_pos, producer_ids_pos, has_lease: of no meaning here.
    """

    leads = False
    replicated_pos = NO_LIMIT
    producer_ids_pos = 0
    has_lease = True

    def __init__(
        self,
        store: MessageStore,
        follower: Follower,
        facade: Facade,
        decompress: Decompress,
        *,
        config: Config,
        clock: Clock,
        metrics: Metrics,
        client_log: ClientLog,
    ) -> None:
        """Serve a log that is followed; it has a whole frame.

        Args:
            store, follower: the log, and what follows.
            facade: of the client protocol.
            decompress: unpacks batches within the limits.
            config, clock, metrics, client_log: see the attributes.
        """
        self.config, self.clock = config, clock
        self.metrics, self.client_log = metrics, client_log
        self._store, self._follower = store, follower
        state = store.state
        self.topics = Topics(state.topics, state.projections, config, client_log)
        self.groups = state.groups
        self.search = OffsetSearch(store.log.view, state.epochs, decompress)
        self._reader = store.make_reader()
        self._damage: list[Damage] = []
        self._fetch = make_fetch_path(
            state.projections, store.log.view, config, facade, self.cluster_id
        )
        self._fetch.is_slave = self._fetch.is_shut = True
        nothing = Projections(id_key=ID_KEY)
        writer = LogWriter(
            LogTail(Pointers(0, sync_flush=True), reserve_bytes=0),
            nothing,
            frame_size_max=config.segment_size_bytes // 2,
            topic_payload=lambda _: b"",
        )
        quota = TimerQuota(
            nothing,
            count_max=config.pending_timers_max,
            second_max=config.due_per_second_max,
        )
        self._produce = make_produce_path(
            writer,
            quota,
            config,
            facade,
            cluster_id=self.cluster_id,
            make_topic=None,
            instants=CronRules(),
        )
        self._produce.is_slave = True

    def check_lease(self) -> bool:
        """Do nothing: a slave acknowledges nothing in any case."""
        return True

    # The stream of the master

    def follow(self, master_visible_pos: int, *, is_heard: bool) -> list[ParkedFetch]:
        """Note what the master said last.

        Without its master, or before it shows all that this slave showed at its start, nothing is
        served: consumers go back to the master.

        Args:
            master_visible_pos: the end of what may be read there.
            is_heard: the master is connected.

        Returns:
            The parked fetches with new records.
        """
        partitions = self._follower.show(master_visible_pos)
        self._fetch.epoch = self.epoch
        is_readable = self._follower.is_readable and not self._damage
        self._fetch.is_shut = not (is_heard and is_readable)
        return self._waiting(partitions)

    def _waiting(self, partitions: Sequence[Partition]) -> list[ParkedFetch]:
        woken: dict[ParkedFetch, None] = {}
        for partition in partitions:
            woken.update(dict.fromkeys(partition.waiting()))
        shown_pos = self._follower.shown_pos
        return [parked for parked in woken if parked.may_have_enough(shown_pos)]

    @property
    def serves_reads(self) -> bool:
        """Consumers may read here now."""
        return not self._fetch.is_shut

    # What a server of clients uses

    @property
    def log(self) -> CommitLog:
        return self._store.log

    @property
    def flushed_pos(self) -> int:
        """The end of the part of the log that is on the disk."""
        return self._follower.durable_pos

    def open_session(self, answer_control_plane: ControlPlane) -> Session:
        """See `Broker.open_session`."""
        return Session(
            self._produce,
            self._fetch,
            answer_control_plane,
            request_size_max=self.config.request_size_limit_bytes,
        )

    def note_client(self, address: str) -> None:
        """Nothing is bounded by address here."""

    def read_cold(self, places: list[ColdPlace]) -> ColdRead:
        """Read and check frames and units; may run on any thread."""
        return self._reader.read(places)

    def note_read(self, read: ColdRead) -> list[Damage]:
        """Apply the result of `read_cold`. Returns new damage.

        The master has what is damaged here, so nothing is served any more: a consumer would pass
        over the records.
        """
        found = self._reader.take_up(read, self._damage)
        self._damage += found
        self._fetch.is_shut |= bool(found)
        return found

    # What handlers of the control plane use

    @property
    def cluster_id(self) -> str:
        return str(self._store.state.cluster)

    @property
    def node_id(self) -> int:
        """The number of this node in the pair."""
        return self._follower.node

    @property
    def epoch(self) -> int:
        """The leader epoch of every partition, as far as the log has come."""
        return self._store.log.tail.epoch

    def space(self) -> tuple[int, int]:
        """See `Broker.space`."""
        return self._store.space()

    def allocate_producer_id(self, address: str = "") -> int:
        """Raise NotReadyError: a slave has none to give."""
        raise NotReadyError("this node is a slave")

    def collect_metrics(self) -> None:
        """Bring `metrics` up to date with the compiled paths."""
        self.metrics.id_reads = self._follower.id_read_count
        broker_metrics.collect_requests(self.metrics, self._produce, self._fetch)

    @property
    def sent_bytes(self) -> int:
        """Bytes of records that consumers read here."""
        return self._fetch.sent_bytes
