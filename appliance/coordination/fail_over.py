"""Decides who of a pair may serve, from what the peer and etcd say.

One node has one `FailOver`, for as long as its process lives. It says what to ask etcd next, and is
told the answer; whoever drives it tells it when the peer was heard. All times are in ms of one
clock that goes on while the machine sleeps. Layer 3; does no I/O.

What it keeps:

- A slave that hears its master is not promoted, nor one that may lack what was acknowledged
  (`PairRecord.in_sync`), nor one that does not know that the key is its own.
- A master may acknowledge until `licensed_until_ms`. It counts from the moment at which a request
  left, and ends before etcd can have let the lease end.
- Each transaction depends on the revisions that the decision was made with.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from appliance.coordination import etcd_wire, records
from appliance.coordination.etcd_wire import Call, Put, Written
from appliance.coordination.records import Holder, PairKeys, PairRecord
from appliance.coordination.standing import SLAVE, STANDINGS, Happening, Standing
from appliance.errors import CoordinatorError, RemoteProtocolError
from appliance.store.role_file import RoleRecord, next_term
from appliance.units import MS_PER_SECOND

POLL_MS: Final = 200
"""Between two readings of a node that waits for a key, and after an error."""

KEEP_ALIVES_IN_LEASE: Final = 3
"""A lease is kept alive that often in its time, so that one request may fail."""

CLOCK_MARGIN_PERCENT: Final = 2
"""How much faster etcd's clock may be than this one: a lease counts as that much shorter."""
_SILENT_MASTERS: Final = frozenset({Standing.COMPARES, Standing.STOPS, Standing.YIELDS})


class Ask(Enum):
    """Kinds of requests."""

    GRANT = "grant"
    KEEP_ALIVE = "keep alive"
    REVOKE = "revoke"
    READ = "read"
    TAKE = "take the key"
    NOTE = "write whether the slave is in sync"


@dataclass(frozen=True, slots=True)
class Step:
    """One request, and when it left."""

    ask: Ask
    call: Call
    left_ms: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class _View:
    """What both keys were at one revision."""

    holder: Holder | None
    holder_revision: int
    holder_lease: int
    pair: PairRecord | None
    pair_revision: int

    @property
    def revisions(self) -> tuple[int, int]:
        return self.holder_revision, self.pair_revision


class FailOver:
    """See the module.

    Attributes:
        standing: of this node.
        term: the highest that this node knows to be, or to have been, its own.
        key_until_ms: until when the key is certainly this node's; 0: it is not.
        problem: why etcd did not do what it was asked last; "" if it did.
        may_follow: a slave has caught up in this process, so that it may be promoted.
        wants_in_sync: what a master wants `pair` to say; None: what it says already.
        may_go_alone: a master that compares need not wait for its slave, whatever `pair` says.
        refused_ms: of a node that yielded: when the other one said last that it is no master; 0
            before.
        refusal: why the key was not taken although an operator ordered it; "" if it was.
    """

    def __init__(self, keys: PairKeys, *, node: int, role: RoleRecord, lease_ms: int) -> None:
        """Begin.

        A node that yielded is a master that compares, and its term is the next of its own: the one
        in its role file is the other node's. It takes the key only if that one did not.

        Args:
            keys: of the pair.
            node: the number of this node.
            role: what its role file says.
            lease_ms: for how long the key outlives its master; etcd counts in whole seconds.
        """
        self._keys, self._node = keys, node
        self._ttl_s = -(-lease_ms // MS_PER_SECOND)
        self._has_yielded = role.has_yielded
        is_slave = not role.is_master and not role.has_yielded
        self.standing = Standing.FOLLOWS if is_slave else Standing.COMPARES
        self.term = next_term(role.term, node) if role.has_yielded else role.term
        self.problem = ""
        self.may_follow = False
        self.wants_in_sync: bool | None = None
        self.may_go_alone = False
        self.refusal = ""
        self._is_ordered = False
        self._is_appointed = False
        self._is_sealed = False
        self.refused_ms = self._seen_ms = 0
        self._peer_until_ms = 0
        self._lease = 0
        self._lease_until_ms = 0
        self._kept_ms = 0
        self.key_until_ms = 0
        self._due_ms = 0
        self._view: _View | None = None
        self._known: _View | None = None
        self._asked: Step | None = None

    @property
    def licensed_until_ms(self) -> int:
        """Until when a master may acknowledge; 0 for a slave."""
        if self.standing in SLAVE or self.standing is Standing.YIELDS:
            return 0
        return max(self.key_until_ms, self._peer_until_ms)

    @property
    def holder(self) -> Holder | None:
        """Who had the key when it was read last."""
        return None if self._known is None else self._known.holder

    @property
    def pair(self) -> PairRecord | None:
        """What `pair` said when it was read last."""
        return None if self._known is None else self._known.pair

    @property
    def is_passed_over(self) -> bool:
        """The key of a slave that was to be promoted has ended, and the other node took it."""
        pair = self.pair
        return self.standing is Standing.MISSES and pair is not None and pair.node != self._node

    def is_alone(self, now_ms: int) -> bool:
        """Return whether this master may acknowledge what its slave lacks.

        It may once `pair` says that the slave is not in sync, and nothing that this node asked for
        before can still change that: each writing depends on the revision of the last one.
        """
        return self.standing is Standing.HOLDS and self._is_sealed and now_ms < self.key_until_ms

    def hear(self, until_ms: int) -> None:
        """Note until when the peer counts as heard.

        For a slave that is a silence after it heard its master last; for a master the replication
        lease, after the last BEAT that its slave answered left.
        """
        self._peer_until_ms = until_ms

    def order(self) -> None:
        """Let a slave take the key although it may hear its master, because an operator says so."""
        self._is_ordered = True
        self.refusal = ""
        self._view = None
        self._due_ms = 0

    def note_term(self, term: int) -> None:
        """Note the term of the master that a slave follows."""
        self.term = max(self.term, term)

    def promoted(self, term: int, *, is_handed: bool = False) -> None:
        """Note that this node is the master, in this term.

        If it does not have the key, an operator insisted, and said that the other node is off; or
        that node handed over. It is a slave then, and may take the key before this one does.

        Args:
            term: in which it is the master.
            is_handed: the other node handed over.
        """
        self.term = max(self.term, term)
        self._is_ordered = False
        self._due_ms = 0
        if self.standing is Standing.SUCCEEDS:
            self._go(Happening.PROMOTED)
        elif self.standing in SLAVE:
            self.standing = Standing.STOPS
            self._view = None
            if not is_handed:
                self.appoint()

    def appoint(self) -> None:
        """Take the key whoever has it, because an operator says that the other node is off."""
        self._is_appointed = True
        if self.standing is Standing.YIELDS:
            self._go(Happening.ORDERED)
        self._view = None
        self._due_ms = 0

    def demoted(self, term: int) -> None:
        """Note that this node is a slave, in this term."""
        self.term = max(self.term, term)
        self.standing = Standing.FOLLOWS
        self._peer_until_ms = self.key_until_ms = 0
        self._view = None
        self.wants_in_sync = None
        self.may_follow = self.may_go_alone = False
        self._is_ordered = self._is_appointed = False

    @property
    def next_term(self) -> int:
        """The term that this node takes the key with, and is the master of."""
        pair = self.pair
        known = self.term if pair is None else max(self.term, pair.term)
        if self.standing in SLAVE:
            return next_term(known, self._node)
        is_same = pair is None or pair.node == self._node or self.term > pair.term
        return known if is_same else next_term(known, self._node)

    def next_step(self, now_ms: int) -> Step | None:
        """Return what to ask etcd now, after everything that the time alone changes.

        The caller asks, and calls `answered` or `failed` before this again. It looks again after a
        while if there is nothing to ask.
        """
        self._observe(now_ms)
        if self._asked is not None or now_ms < self._due_ms:
            return None
        step = self._plan(now_ms)
        self._asked = step
        return step

    def answered(self, body: bytes, now_ms: int) -> None:
        """Take the answer of etcd to the last step."""
        step = self._asked
        assert step is not None
        try:
            self._handle(step, body, now_ms)
        except RemoteProtocolError as error:
            self.failed(CoordinatorError(error.message, is_refused=False), now_ms)
            return
        self._asked = None
        self.problem = ""

    def failed(self, error: CoordinatorError, now_ms: int) -> None:
        """Note that there is no answer to the last step, or a refusal."""
        step = self._asked
        assert step is not None
        self._asked, self._view = None, None
        self.problem = error.message
        self._due_ms = now_ms + POLL_MS
        if step.ask is Ask.REVOKE and error.is_refused:  # it has ended by itself
            self._end_withdrawal()
        elif step.ask is Ask.KEEP_ALIVE and error.is_refused:
            self._end_lease()
        elif step.ask is Ask.TAKE:
            if error.is_refused:  # the lease has ended
                self._end_lease()
            if self.standing is Standing.TAKES:
                self._go(Happening.REFUSED if error.is_refused else Happening.UNKNOWN)

    def _go(self, happening: Happening) -> None:
        assert (self.standing, happening) in STANDINGS, f"{happening} in {self.standing}"
        self.standing = STANDINGS[self.standing, happening]
        self._view = None

    def _observe(self, now_ms: int) -> None:
        """Take the steps that time and the peer cause."""
        if now_ms >= self.key_until_ms:
            self.key_until_ms = 0
            if self.standing in (Standing.HOLDS, Standing.SUCCEEDS):
                self._go(Happening.LAPSED)
        is_heard = now_ms < self._peer_until_ms
        if self.standing is Standing.FOLLOWS and self._is_ordered:
            self._go(Happening.ORDERED)
        elif self.standing is Standing.FOLLOWS and not is_heard:
            self._go(Happening.SILENT)
        elif self.standing is Standing.MISSES and is_heard and not self._is_ordered:
            self._go(Happening.HEARD)
        elif self.standing is Standing.LEANS and not is_heard:
            self._go(Happening.SILENT)
        elif self.standing in _SILENT_MASTERS and is_heard:
            self._go(Happening.HEARD)

    def _plan(self, now_ms: int) -> Step | None:
        """Return the next request of where this node stands."""
        if self.standing is Standing.WITHDRAWS:
            return self._step(Ask.REVOKE, etcd_wire.revoke(self._lease), now_ms)
        if self.standing in (Standing.FOLLOWS, Standing.YIELDS):
            return None
        has_lease = now_ms < self._lease_until_ms
        # One that may have ended is asked for as well: etcd may have been away meanwhile.
        if self._lease and now_ms >= self._kept_ms + self._ttl_ms // KEEP_ALIVES_IN_LEASE:
            return self._step(Ask.KEEP_ALIVE, etcd_wire.keep_alive(self._lease), now_ms)
        if self.standing is Standing.SUCCEEDS:
            return None
        view = self._view
        if view is None:
            return self._step(Ask.READ, etcd_wire.read(self._keys.both), now_ms)
        if self.standing is Standing.HOLDS:
            return self._plan_note(view, now_ms)
        if not self._may_take(view, now_ms):
            self._refuse_order(view)
            self._view = None
            self._due_ms = now_ms + POLL_MS
            return None
        if not has_lease:
            return self._step(Ask.GRANT, etcd_wire.grant(self._ttl_s), now_ms)
        if self.standing is Standing.MISSES:
            self._go(Happening.ASKED)
        return self._plan_take(view, now_ms)

    def _plan_take(self, view: _View, now_ms: int) -> Step:
        pair, term = view.pair, self.next_term
        is_same = self.standing not in SLAVE and pair is not None and pair.node == self._node
        in_sync = is_same and pair is not None and pair.in_sync
        puts = [
            Put(self._keys.master, records.encode_holder(Holder(self._node, term)), self._lease),
            self._put_pair(PairRecord(self._node, term, in_sync)),
        ]
        return self._step(Ask.TAKE, self._transact(view, puts), now_ms)

    def _plan_note(self, view: _View, now_ms: int) -> Step | None:
        pair = view.pair
        assert pair is not None
        wants = self.wants_in_sync
        if wants is None or (pair.in_sync if wants else self._is_sealed):
            return None
        puts = [self._put_pair(PairRecord(self._node, pair.term, wants))]
        return self._step(Ask.NOTE, self._transact(view, puts), now_ms)

    def _put_pair(self, record: PairRecord) -> Put:
        # Before it leaves: whether it is done may never be known.
        self._is_sealed = False
        return Put(self._keys.pair, records.encode_pair(record))

    def _transact(self, view: _View, puts: list[Put]) -> Call:
        expected = {
            self._keys.master: view.holder_revision,
            self._keys.pair: view.pair_revision,
        }
        return etcd_wire.transact(expected, puts, self._keys.both)

    def _step(self, ask: Ask, call: Call, now_ms: int) -> Step:
        return Step(ask, call, now_ms, self._lease)

    def _may_take(self, view: _View, now_ms: int) -> bool:
        """Return whether this node, that has no key, may have it now."""
        pair, holder = view.pair, view.holder
        if holder is not None and holder.node != self._node and not self._is_superior(pair):
            return False
        is_mine = pair is not None and pair.node == self._node
        if self.standing in SLAVE:
            if pair is None or self._is_ordered:
                return pair is not None
            return self.may_follow and (is_mine or pair.in_sync)
        if self._has_yielded and not self._is_appointed:
            # The other node said that it is no master, and etcd has not changed since.
            return self.refused_ms > self._seen_ms
        if now_ms < self._peer_until_ms or pair is None or self._is_appointed:
            return True
        if self.standing is Standing.COMPARES and pair.in_sync and not self.may_go_alone:
            return False  # the slave may have more than this node, after a power cut
        return is_mine or self._is_superior(pair)

    def _refuse_order(self, view: _View) -> None:
        if not self._is_ordered:
            return
        self._is_ordered = False
        holder = view.holder
        if holder is None or holder.node == self._node:
            self.refusal = "etcd does not know this pair yet"
        else:
            self.refusal = f"node {holder.node} has the key in etcd, in term {holder.term}"

    def _is_superior(self, pair: PairRecord | None) -> bool:
        """Return whether this node became the master, and etcd does not know it yet.

        An operator said so, or the other node handed over.
        """
        if self.standing in SLAVE or pair is None or pair.node == self._node:
            return False
        return self._is_appointed or (self.term > pair.term and not self._has_yielded)

    def _handle(self, step: Step, body: bytes, now_ms: int) -> None:
        if step.ask is Ask.GRANT:
            self._lease, ttl_s = etcd_wire.decode_grant(body)
            self._keep_lease(step, ttl_s)
        elif step.ask is Ask.KEEP_ALIVE:
            self._handle_keep_alive(step, etcd_wire.decode_keep_alive(body, step.lease))
        elif step.ask is Ask.REVOKE:
            self._end_withdrawal()
        else:
            put_count = {Ask.READ: 0, Ask.TAKE: 2, Ask.NOTE: 1}[step.ask]
            written = etcd_wire.decode_written(body, put_count=put_count, keys=self._keys.both)
            self._handle_written(step, written, now_ms)

    def _keep_lease(self, step: Step, ttl_s: int) -> None:
        ttl_ms = ttl_s * MS_PER_SECOND * (100 - CLOCK_MARGIN_PERCENT) // 100
        self._lease_until_ms = step.left_ms + ttl_ms
        self._kept_ms = step.left_ms

    def _end_withdrawal(self) -> None:
        """Nothing of the lease is left. The node may have become the master meanwhile."""
        self._end_lease()
        if self.standing is Standing.WITHDRAWS:
            self._go(Happening.REVOKED)

    def _end_lease(self) -> None:
        self._lease = self._lease_until_ms = self.key_until_ms = 0

    @property
    def _ttl_ms(self) -> int:
        return self._ttl_s * MS_PER_SECOND

    def _handle_keep_alive(self, step: Step, ttl_s: int) -> None:
        if not ttl_s:
            self._end_lease()
            return
        self._keep_lease(step, ttl_s)
        if self.key_until_ms:
            self.key_until_ms = self._lease_until_ms
        if self.standing is Standing.HOLDS:
            self._view = None  # somebody may have replaced the key by force

    def _handle_written(self, step: Step, written: Written, now_ms: int) -> None:
        before, view = self._known, self._read_view(written)
        if before is None or before.revisions != view.revisions:
            self._seen_ms = now_ms
        self._view = self._known = view
        pair = view.pair
        if pair is not None and self._lease and view.holder_lease == self._lease:
            self._handle_mine(step, pair, now_ms, is_done=written.is_done)
            return
        self.key_until_ms = 0
        is_other = pair is not None and pair.node != self._node
        is_superseded = is_other and not self._is_superior(pair)
        if self.standing is Standing.TAKES:
            self._due_ms = now_ms + POLL_MS
            self._go(Happening.REFUSED)
        elif is_superseded and now_ms >= self._peer_until_ms and not self._has_yielded:
            if (self.standing, Happening.SUPERSEDED) in STANDINGS:
                self._go(Happening.SUPERSEDED)
        elif self.standing is Standing.HOLDS:
            self._go(Happening.LAPSED)

    def _handle_mine(self, step: Step, pair: PairRecord, now_ms: int, *, is_done: bool) -> None:
        """The key has the lease of this node."""
        if step.ask is not Ask.READ and is_done:
            self._is_sealed = not pair.in_sync
        if self.standing is Standing.MISSES:  # of a transaction whose answer was lost
            self._go(Happening.ASKED)
        self.term = max(self.term, pair.term)
        is_heard = now_ms < self._peer_until_ms and not self._is_ordered
        if self.standing is Standing.TAKES and is_heard:
            self._go(Happening.HEARD)
            return
        self._is_appointed = self._has_yielded = False
        self.key_until_ms = self._lease_until_ms
        if (self.standing, Happening.TAKEN) in STANDINGS:
            view = self._view
            self._go(Happening.TAKEN)
            self._view = view

    def _read_view(self, written: Written) -> _View:
        master, pair = (written.found.get(key) for key in self._keys.both)
        return _View(
            holder=None if master is None else records.decode_holder(master.value),
            holder_revision=0 if master is None else master.mod_revision,
            holder_lease=0 if master is None else master.lease,
            pair=None if pair is None else records.decode_pair(pair.value),
            pair_revision=0 if pair is None else pair.mod_revision,
        )
