"""What happens to a simulated pair, and the operator who follows docs/REPLICATION.md.

The operator knows who is to be the master, restarts what ended, promotes the slave when the master
is lost, and lets the old master return as a slave. Faults come one after the other; some of them
overlap with what the operator does about them.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from appliance.admin.status import ReplicationStatus
from appliance.errors import NotReadyError, RoleError
from appliance.main import Service
from tests.support.pair.node import PEER_PORT, PairNode
from tests.support.pair.record import PairRecord
from tests.support.simulator.sim_fs import CrashMode
from tests.support.simulator.sim_network import Network
from tests.support.simulator.world import World

POWER_CUTS: Final[tuple[CrashMode, ...]] = (
    *("torn", "torn", "torn", "pages", "pages"),
    *("dropped", "last", "names", "kept"),
)
"""Those that leave holes are most instructive."""

CLIENTS: Final = "127.0.0.9"
"""The host of the clients."""

VERBS: Final[Mapping[str, int]] = {
    "cut_connection": 1,
    "delay": 1,
    "fail_over": 3,
    "fill_disk": 1,
    "damage_slave": 1,
    "freeze": 1,
    "go_alone": 1,
    "go_solo": 1,
    "hand_over": 3,
    "lose_both": 1,
    "lose_slave": 3,
    "partition": 1,
    "replace_slave": 1,
    "restart_master": 2,
    "restart_slave": 1,
    "stop_and_promote": 1,
}
"""Methods of `Operator`, and how often each happens relative to the others."""

LOOK_MS: Final = 25
"""Between two looks of the operator."""

PROMOTE_MS: Final = 4_000
"""The operator gives up a promotion that takes longer."""

CONNECTED_MS: Final = 6_000
"""And waits so long for a slave that has caught up."""

STALLED_MS: Final = 150
"""What a sync takes on a disk that has a bad day."""

CRASH_WITHIN_MS: Final = 60
"""A node that is to crash in a call of its disk has so long for it; then it is lost otherwise."""

FULL_BYTES: Final = 4_096
"""Left on a full disk."""


class NotHealedError(Exception):
    """The slave does not follow although nothing hinders it."""


class Operator:
    """Faults and what is done about them.

    Attributes:
        master: the number of the node that is to be the master.
        counts: what happened, by name.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        record: PairRecord,
        *,
        timeout_ms: int,
        is_sync: bool,
        is_sync_flush: bool,
    ) -> None:
        """Do nothing yet.

        Args:
            world, network: where the nodes are.
            record: gets what may be lost; its nodes are 1, which begins as the master, and 2.
            timeout_ms: after so long a silent peer is lost.
            is_sync: acknowledgements wait for the slave.
            is_sync_flush: and for the disks.
        """
        self._world, self._network, self._record = world, network, record
        self._nodes = record.nodes
        self._rng = world.fork()
        self._timeout_ms = timeout_ms
        self._is_sync, self._is_sync_flush = is_sync, is_sync_flush
        self.master = 1
        self.counts: Counter[str] = Counter()

    def node(self, number: int) -> PairNode:
        return self._nodes[number - 1]

    @property
    def slave(self) -> int:
        return 3 - self.master

    # What the operator does

    def start(self) -> None:
        """Start both nodes for the first time."""
        self.node(1).start()
        self.node(2).start()

    async def run(self, faults: int) -> None:
        """Let that many things happen, and repair everything after them."""
        await self.until_in_sync()
        for _ in range(faults):
            await self._sleep_ms(self._rng.expovariate(1 / 150))
            (name,) = self._rng.choices(list(VERBS), list(VERBS.values()))
            if name == "go_solo" and not self._is_sync:
                continue
            self.counts[name] += 1
            self._world.note("operator", name)
            await getattr(self, name)()
        await self.repair()

    async def repair(self) -> None:
        """Remove what is wrong, and wait until the pair is one again."""
        self._network.heal()
        for node in self._nodes:
            node.fill(None)
        await self._up(self.master)
        await self._up(self.slave)
        await self.until_in_sync()

    async def until_in_sync(self) -> None:
        """Wait until the slave streams, which it must soon: nothing hinders it.

        Raises:
            NotHealedError: it does not.
        """
        end_ms = self._world.now_ms + CONNECTED_MS
        while self._world.now_ms < end_ms:
            await self._restart_ended()
            status = self.status(self.master)
            if self._slave_is_ahead():
                self.counts["ahead"] += 1
                await self.promote(is_forced=True)
            elif status is not None and status.state == "streaming" and not status.solo:
                return
            await self._sleep_ms(LOOK_MS)
        raise NotHealedError(f"the pair did not heal within {CONNECTED_MS} ms: {self.state()}")

    def _slave_is_ahead(self) -> bool:
        """The master waits because it lost the end of its log, and its slave has it."""
        master, slave = self.node(self.master).broker, self.node(self.slave).broker
        if master is None or slave is None or slave.follower is None:
            return False
        comparison = master.comparison
        if comparison is None or comparison.is_over:
            return False
        return slave.follower.end_pos > comparison.committed_pos

    def state(self) -> str:
        """What the nodes are at, for people."""
        parts = (
            f"node {node.number}: {self.status(node.number) or node.exit_error}"
            for node in self._nodes
        )
        return "; ".join(parts)

    def status(self, number: int) -> ReplicationStatus | None:
        """What a node says of its part; None if it is not running."""
        service = self.node(number).service
        if service is None:
            return None
        try:
            return service._status.replication()
        except NotReadyError:
            return None

    async def _restart_ended(self) -> None:
        """Start what ended by itself, as a service manager does."""
        for node in self._nodes:
            if not node.is_running and node.host.is_up and node.exit_error is not None:
                self.counts["ended"] += 1
                node.start()

    async def _up(self, number: int) -> None:
        node = self.node(number)
        if not node.is_running:
            node.start()

    async def promote(self, *, is_forced: bool = False) -> bool:
        """Promote the slave; return False if it refuses or does not answer."""
        node = self.node(self.slave)
        if node.service is None:
            return False
        answer: list[object] = []
        follower = node.service._broker.follower
        kept_pos = 0 if follower is None else follower.end_pos
        node.call(lambda service: service._status.promote(is_forced=is_forced), answer.append)
        end_ms = self._world.now_ms + PROMOTE_MS
        while not answer and self._world.now_ms < end_ms and node.is_running:
            await self._sleep_ms(LOOK_MS)
        if not answer or isinstance(answer[0], RoleError | NotReadyError):
            return False
        self._note_error(answer[0])
        self._record.note_loss(self.master, kept_pos)
        self.master = node.number
        self.counts["promoted"] += 1
        return True

    def _note_error(self, answer: object) -> None:
        if isinstance(answer, Exception):
            self._world.errors.append(answer)

    async def _return_as_slave(self, number: int) -> None:
        """Let the old master find the new one; perhaps it is running and learns that it is none."""
        node = self.node(number)
        if node.is_running and self._rng.random() < 0.5:
            node.kill()
        await self._up(number)
        await self.until_in_sync()

    # What happens

    def _some_ms(self) -> float:
        """From much shorter to some times longer than what a node waits for its peer."""
        return self._timeout_ms * self._rng.choice((0.05, 0.3, 0.9, 1.1, 2.0, 3.5))

    async def _sleep_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(duration_ms / 1000)

    async def _lose(self, number: int) -> None:
        """End the process of a node in one of many ways."""
        node, rng = self.node(number), self._rng
        if rng.random() < 0.5:
            # So much is written and not synced yet.
            node.thread_ms, usual_ms = STALLED_MS, node.thread_ms
            await self._sleep_ms(rng.expovariate(1 / STALLED_MS))
            node.thread_ms = usual_ms
        if not node.is_running:
            return
        how = rng.random()
        if how < 0.2:
            # The next calls of its disk come soon or late.
            node.crash_after(rng.randrange(1, 40))
            await self._sleep_ms(CRASH_WITHIN_MS)
        if how < 0.7 and node.is_running:
            self._note_loss(node)
            node.cut_power(rng.choice(POWER_CUTS))
        else:
            node.kill()

    def _note_loss(self, node: PairNode) -> None:
        """With async flush a power cut loses what only memory has."""
        broker = node.broker
        if node.number != self.master or broker is None:
            return
        if hasattr(broker, "topics") and not broker.is_sync_flush:
            self._record.note_loss(node.number, broker.flushed_pos)

    async def cut_connection(self) -> None:
        """The connection of the nodes, or all of a node, ends within a message."""
        for _ in range(self._rng.randrange(1, 4)):
            node = self._rng.choice(self._nodes)
            self._network.cut(node.name, self._rng.choice((PEER_PORT, PEER_PORT, None)))
            await self._sleep_ms(self._rng.expovariate(1 / 30))

    async def partition(self) -> None:
        """Nothing passes between the nodes, or one and the clients, in one direction or both."""
        one, two = self._rng.choice((self._node_names(), self._node_names(), self._client_names()))
        ways = self._rng.choice((((one, two),), ((two, one),), ((one, two), (two, one))))
        for source, target in ways:
            self._network.block(source, target)
        await self._sleep_ms(self._some_ms())
        self._network.heal()

    async def delay(self) -> None:
        """What passes between the nodes is late, perhaps by more than their patience."""
        one, two = (node.name for node in self._nodes)
        for way in self._rng.sample(((one, two), (two, one)), self._rng.randrange(1, 3)):
            self._network.extra_ms[way] = self._some_ms()
        await self._sleep_ms(self._some_ms())
        self._network.heal()

    async def freeze(self) -> None:
        """A process stops for a while."""
        self._rng.choice(self._nodes).freeze(self._some_ms())
        await self._sleep_ms(self._some_ms())

    async def lose_slave(self) -> None:
        """The slave ends somehow, and comes back."""
        await self.until_in_sync()
        await self._lose(self.slave)
        await self._sleep_ms(self._some_ms())
        await self._up(self.slave)
        await self.until_in_sync()

    async def lose_both(self) -> None:
        """Both nodes end at once, and come back in any order."""
        await self.until_in_sync()
        numbers = self._rng.sample((1, 2), 2)
        for number in numbers:
            node = self.node(number)
            # With async flush the memory of one of them must stay.
            if self._is_sync_flush:
                node.cut_power(self._rng.choice(POWER_CUTS))
            else:
                node.kill()
        for number in numbers:
            await self._sleep_ms(self._some_ms())
            await self._up(number)
        await self.until_in_sync()

    async def replace_slave(self) -> None:
        """The slave has lost its disk, and copies the log anew."""
        await self.until_in_sync()
        slave = self.node(self.slave)
        slave.kill()
        slave.replace_disk()
        await self._sleep_ms(self._some_ms())
        await self._up(self.slave)
        await self.until_in_sync()

    async def restart_slave(self) -> None:
        """The slave is stopped cleanly, and comes back."""
        await self._stop(self.slave)
        await self._up(self.slave)
        await self.until_in_sync()

    async def restart_master(self) -> None:
        """The master ends, and comes back as the master."""
        await self.until_in_sync()
        await self._lose(self.master)
        await self._sleep_ms(self._some_ms())
        await self._up(self.master)
        await self.until_in_sync()

    async def fail_over(self) -> None:
        """The master is lost in some way, and the slave is promoted."""
        old, rng = self.master, self._rng
        status = self.status(old)
        # What a sync master acknowledged its slave has, also when they do not hear each other now.
        is_safe = self._is_sync and status is not None and status.role == "master"
        if not is_safe or status is None or status.solo or rng.random() < 0.5:
            await self.until_in_sync()
        await self._sleep_ms(rng.expovariate(1 / 40))
        how = rng.choice(("lost", "cut off", "frozen", "alive"))
        if how == "lost" or not self._is_sync:
            await self._lose(old)
        elif how == "cut off":
            for ways in (self._node_names(), reversed(self._node_names())):
                self._network.block(*ways)
        elif how == "frozen":
            self.node(old).freeze(self._some_ms() * 2)
        await self._sleep_ms(rng.choice((0, 10, self._some_ms())))
        is_promoted = await self.promote()
        await self._sleep_ms(rng.choice((0, 10, self._some_ms())))
        self._network.heal()
        if is_promoted:
            await self._return_as_slave(old)
        else:
            await self._up(old)

    def _client_names(self) -> tuple[str, str]:
        return self._rng.choice(self._nodes).name, CLIENTS

    def _node_names(self) -> tuple[str, str]:
        return self._nodes[0].name, self._nodes[1].name

    async def stop_and_promote(self) -> None:
        """Hand over by hand."""
        old = self.master
        await self.until_in_sync()
        if not await self._stop(old):
            return
        slave = self.node(self.slave).service
        follower = None if slave is None else slave._broker.follower
        end = self.node(old).end_pos
        if follower is None or end is None or follower.durable_pos < end:
            await self._up(old)  # the slave lacks something
            return
        is_promoted = await self.promote()
        if is_promoted:
            await self._return_as_slave(old)
        else:
            await self._up(old)

    async def _stop(self, number: int) -> bool:
        """Stop a node cleanly; return whether it did."""
        node = self.node(number)
        node.terminate()
        end_ms = self._world.now_ms + PROMOTE_MS
        while node.is_running and self._world.now_ms < end_ms:
            await self._sleep_ms(LOOK_MS)
        return not node.is_running and node.exit_error is None

    async def fill_disk(self) -> None:
        """The disk of a node is full for a while."""
        node = self._rng.choice(self._nodes)
        node.fill(self._rng.randrange(FULL_BYTES))
        await self._sleep_ms(self._some_ms())
        node.fill(None)
        await self._restart_ended()

    async def go_solo(self) -> None:
        """The slave is off, and the master goes on alone until it is back."""
        await self.until_in_sync()
        await self._lose(self.slave)
        await self._sleep_ms(self._some_ms())
        master = self.node(self.master)
        if master.service is not None:

            async def verb(service: Service) -> object:
                return service._status.go_solo(is_slave_off=True)

            master.call(verb, lambda _answer: None)
        await self._sleep_ms(self._some_ms())
        await self._up(self.slave)
        # Until then the slave lacks what was acknowledged, and nobody may promote it.
        await self.until_in_sync()

    async def go_alone(self) -> None:
        """Both nodes end, and the master goes on before the slave is back."""
        await self.until_in_sync()
        for number in (self.slave, self.master):
            self.node(number).kill()
        await self._sleep_ms(self._some_ms())
        await self._up(self.master)
        master = self.node(self.master)

        async def verb(service: Service) -> object:
            return service._status.go_alone()

        end_ms = self._world.now_ms + PROMOTE_MS
        while not self._serves(self.master) and self._world.now_ms < end_ms:
            if master.service is not None:
                master.call(verb, lambda _answer: None)
            await self._sleep_ms(LOOK_MS)
        await self._sleep_ms(self._some_ms())
        await self._up(self.slave)
        await self.until_in_sync()

    async def damage_slave(self) -> None:
        """The disk of the slave changes a byte while it is off; it gets it from its master.

        That one serves, or was killed as well and compares.
        """
        await self.until_in_sync()
        slave = self.node(self.slave)
        slave.kill()
        if self._rng.random() < 0.5:
            self.node(self.master).kill()
        slave.damage(self._rng)
        await self._up(self.slave)
        await self._up(self.master)
        end_ms = self._world.now_ms + CONNECTED_MS
        while self._world.now_ms < end_ms and not self._streams(self.slave):
            await self._restart_ended()
            await self._sleep_ms(LOOK_MS)
        await self.until_in_sync()
        self.counts["repaired"] += slave.has_repaired
        slave.is_damaged = slave.has_repaired = False

    async def hand_over(self) -> None:
        """The master hands over, perhaps while something else happens."""
        await self.until_in_sync()
        old = self.node(self.master)
        answer: list[object] = []
        old.call(lambda service: service._status.hand_over(), answer.append)
        rng = self._rng
        await self._sleep_ms(rng.expovariate(1 / 40))
        how = rng.choice(("nothing", "nothing", "killed", "cut", "parted", "frozen"))
        node = rng.choice(self._nodes)
        if how == "killed":
            node.kill()
        elif how == "cut":
            self._network.cut(node.name, PEER_PORT)
        elif how == "parted":
            names = self._node_names()
            self._network.block(*(names if rng.random() < 0.5 else names[::-1]))
        elif how == "frozen":
            node.freeze(self._some_ms())
        end_ms = self._world.now_ms + PROMOTE_MS
        while not answer and self._world.now_ms < end_ms and old.is_running:
            await self._sleep_ms(LOOK_MS)
        self._network.heal()
        await self._find_master()
        await self.until_in_sync()

    def _streams(self, number: int) -> bool:
        status = self.status(number)
        return status is not None and (status.role, status.state) == ("slave", "streaming")

    def _serves(self, number: int) -> bool:
        status = self.status(number)
        return status is not None and status.role == "master" and status.state != "comparing"

    async def _find_master(self) -> None:
        """Wait until one of the nodes is the master, whoever that is after a hand-over."""
        end_ms = self._world.now_ms + CONNECTED_MS
        while self._world.now_ms < end_ms:
            for number in (1, 2):
                await self._up(number)
            serving = [number for number in (1, 2) if self._serves(number)]
            if len(serving) == 1:
                self.counts["handed over"] += serving[0] != self.master
                self.master = serving[0]
                return
            await self._sleep_ms(LOOK_MS)
        raise NotHealedError(f"nobody is the master {CONNECTED_MS} ms later: {self.state()}")
