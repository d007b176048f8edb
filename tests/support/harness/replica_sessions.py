"""A master's and a slave's session that talk without a network, in virtual time."""

from typing import Final

from appliance.replication import wire
from appliance.replication.facts import Facts, Role
from appliance.replication.link_limits import LinkLimits
from appliance.replication.logs import ReplicaError
from appliance.replication.master_session import MasterSession
from appliance.replication.slave_session import Begin, Prepare, Read, SlaveSession, Take
from appliance.replication.wire import Hello, Refused
from tests.support.harness.replica_logs import MemoryLog

SECRET: Final = b"a secret of both nodes"

LIMITS: Final = LinkLimits(window_bytes=64 * 1024, piece_bytes=16 * 1024)


class SessionPair:
    """Both sessions and their logs; nothing happens before `settle`.

    Attributes:
        now_ms: virtual time; add to it.
        is_flushing: the slave flushes what it appended; else the flush takes for ever.
        catch_up_rate: what the slave gets at most while it catches up, bytes a second; 0: no bound.
        refused: what the master's owner says to a slave that fits.
        orders: of a hand-over, which the test carries out.
        repaired: bytes that the master got for damaged parts of its log, by position.
        to_slave, to_master: all bytes so far.
    """

    def __init__(
        self,
        source: MemoryLog,
        replica: MemoryLog,
        *,
        limits: LinkLimits = LIMITS,
        slave_secret: bytes = SECRET,
        terms: tuple[int, int] = (0, 0),
        leases_ms: tuple[int, int] = (0, 0),
        compares: bool = False,
        damaged: tuple[tuple[int, int], ...] = (),
        catch_up_rate: int = 0,
    ) -> None:
        role = Role.COMPARING if compares else Role.MASTER
        self.now_ms = 1_000
        self.is_flushing = True
        self.catch_up_rate = catch_up_rate
        self.refused: Refused | None = None
        self.orders: list[Prepare | Take] = []
        self.repaired: dict[int, bytes] = {}
        self.to_slave = bytearray()
        self.to_master = bytearray()
        self.source = source
        self.replica = replica
        self.master = MasterSession(
            source,
            SECRET,
            nonce=bytes([1]) * wire.NONCE_SIZE,
            now_ms=self.now_ms,
            admit=self._admit,
            limits=limits,
            facts=lambda: Facts(terms[0], role, lease_ms=leases_ms[0]),
            compares=compares,
            damaged=lambda: damaged,
            catch_up_rate=lambda: self.catch_up_rate,
        )
        self.slave = SlaveSession(
            replica,
            slave_secret,
            nonce=bytes([2]) * wire.NONCE_SIZE,
            now_ms=self.now_ms,
            limits=limits,
            facts=lambda: Facts(terms[1], Role.SLAVE, lease_ms=leases_ms[1]),
        )

    def _admit(self, _hello: Hello) -> Refused | None:
        return self.refused

    def write(self, pos: int, data: bytes) -> None:
        """Write what the master lacks, as its owner does."""
        if pos < self.source.committed_pos:
            self.repaired[pos] = data
        else:
            self.source.append(pos, data)

    def settle(self) -> None:
        """Pass bytes in both directions until nothing moves."""
        while self.step_master() or self.step_slave():
            pass

    def step_master(self) -> bool:
        """Pass what the master sends; return whether it sent anything."""
        wanted = self.master.next_read(self.now_ms)
        if wanted is not None:
            self.master.loaded(wanted[0], self.source.read(*wanted), self.now_ms)
        data = b"".join(self.master.take_output())
        self.to_slave += data
        if data:
            self.give_slave(data)
        return bool(data)

    def step_slave(self) -> bool:
        """Flush, and pass what the slave sends; return whether it sent anything."""
        slave = self.slave
        if slave.is_begun and self.is_flushing and slave.has_stream:
            durable_pos = self.replica.flush()
            if durable_pos > slave.durable_pos:
                slave.flushed(durable_pos, self.now_ms)
        data = b"".join(slave.take_output())
        self.to_master += data
        if data:
            self.master.received(data, self.now_ms)
        if self.master.found is not None:
            self.write(self.master.found.pos, self.master.found.data)
            self.master.took()
        return bool(data)

    def give_slave(self, data: bytes) -> None:
        """Do what a slave does with what arrives."""
        for order in self.slave.received(data, self.now_ms):
            try:
                if isinstance(order, Begin):
                    begin = self.replica.restart if order.is_anew else self.replica.truncate
                    begin(order.pos)
                    self.slave.begun(self.now_ms)
                elif isinstance(order, Read):
                    self.slave.read(order.pos, self.replica.read(order.pos, order.size))
                elif isinstance(order, Prepare | Take):
                    self.orders.append(order)
                else:
                    self.replica.append(order.pos, order.data)
                    self.slave.appended(order.pos, len(order.data), self.now_ms)
            except ReplicaError as error:
                self.slave.fail(error.message)
                return

    def pass_time(self, duration_ms: int) -> None:
        """Let time pass in steps, with what is due done."""
        for _ in range(0, duration_ms, 50):
            self.now_ms += 50
            self.master.tick(self.now_ms)
            self.slave.tick(self.now_ms)
            self.settle()
