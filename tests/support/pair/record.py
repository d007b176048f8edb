"""What the clients of a simulated pair did and saw, in the words of the history checkers.

The nodes have clocks of their own. What is sent counts by the one that is behind and what is
answered or read by the one that is ahead, so that no difference of the clocks looks like a broken
promise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.oracles import commit_history
from tests.support.oracles.history_events import Event, MessageId
from tests.support.pair.node import PairNode


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A node acknowledged a batch.

    Attributes:
        node: its number.
        epoch: in which it wrote then.
        at_ns: when the answer left, by the world's time.
    """

    node: int
    epoch: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Loss:
    """The log may have become shorter: a slave was promoted, or memory was lost.

    Attributes:
        kept_pos: what is below is there.
        seen_pos: below it was what clients had been told or shown.
        epoch: of the master that wrote what is lost.
    """

    kept_pos: int
    seen_pos: int
    epoch: int


@dataclass(slots=True)
class PairRecord:
    """The history of one run.

    Attributes:
        nodes: of the pair.
        events: of producers and readers.
        group_events: of readers as members of their group, by group.
        acknowledgements: who acknowledged in which epoch.
        faults: of a client, in words: answers that must not be.
        positions: in which epoch a message was acknowledged, and below which position it is.
        losses: in order.
        local_producers: those with acks=1, whose acknowledgements say nothing of the slave.
        seen_pos: everything that clients of this master were told or shown is below this position.
    """

    nodes: Sequence[PairNode]
    events: list[Event] = field(default_factory=list)
    group_events: dict[str, list[commit_history.GroupEvent]] = field(default_factory=dict)
    acknowledgements: set[Acknowledgement] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    positions: dict[MessageId, tuple[int, int]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    seen_pos: int = 0
    local_producers: set[str] = field(default_factory=set)

    def sent_ms(self) -> int:
        """Now, by the clock that is behind."""
        return min(node.clock.wall_ms() for node in self.nodes)

    def seen_ms(self) -> int:
        """Now, by the clock that is ahead."""
        return max(node.clock.wall_ms() for node in self.nodes)

    def note_acknowledged(self, number: int, messages: Sequence[MessageId], *, at_ns: int) -> None:
        """Note that a node has acknowledged a batch at that time; it may be gone since."""
        node = self.nodes[number - 1]
        node.note_log()
        epoch = node.epoch_at(at_ns)
        self.acknowledgements.add(Acknowledgement(number, epoch, at_ns))
        self.positions |= dict.fromkeys(messages, (epoch, node.committed_pos))
        self.seen_pos = max(self.seen_pos, node.committed_pos)

    def is_master(self, number: int) -> bool:
        """Return whether a node serves as a master; a slave may lack what its master showed."""
        broker = self.nodes[number - 1].broker
        return broker is not None and (broker.follower is None or broker.follower.is_promoted)

    def note_seen(self, number: int) -> None:
        """Note that a node has told or shown a client something."""
        node = self.nodes[number - 1]
        node.note_log()
        self.seen_pos = max(self.seen_pos, node.committed_pos)

    def note_loss(self, number: int, kept_pos: int) -> None:
        """Note that of what a master wrote only what is below a position is certainly kept."""
        node = self.nodes[number - 1]
        node.note_log()
        self.losses.append(Loss(kept_pos, self.seen_pos, node.epoch))
        self.seen_pos = min(self.seen_pos, kept_pos)
