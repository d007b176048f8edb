"""What addresses owe for batches that become much larger in the log than they were."""

from appliance.units import MIB, MS_PER_SECOND, NS_PER_MS
from compat.kafka.network.log_debts import CREDIT_BYTES, DEBTORS_MAX, PAID_BYTES, LogDebts

SECOND_NS = MS_PER_SECOND * NS_PER_MS
ADDRESS, OTHER = "192.0.2.1", "192.0.2.2"


def test_nobody_waits_for_what_the_credit_covers() -> None:
    debts = LogDebts()
    for _ in range(8):
        debts.charge(ADDRESS, CREDIT_BYTES // 8, 5)
    assert debts.wait_ns(ADDRESS, 5) == 0


def test_an_address_waits_until_it_owes_no_more_than_its_credit() -> None:
    debts = LogDebts()
    debts.charge(ADDRESS, CREDIT_BYTES, 0)
    debts.charge(ADDRESS, 3 * PAID_BYTES, 0)
    assert debts.wait_ns(ADDRESS, 0) == 3 * SECOND_NS
    assert debts.wait_ns(ADDRESS, 3 * SECOND_NS - 1) == 1
    assert debts.wait_ns(ADDRESS, 3 * SECOND_NS) == 0
    assert debts.wait_ns(OTHER, 0) == 0


def test_what_was_paid_is_credit_again() -> None:
    debts = LogDebts()
    debts.charge(ADDRESS, CREDIT_BYTES, 0)
    now_ns = CREDIT_BYTES // PAID_BYTES * SECOND_NS
    debts.charge(ADDRESS, CREDIT_BYTES, now_ns)
    assert debts.wait_ns(ADDRESS, now_ns) == 0
    debts.charge(ADDRESS, PAID_BYTES, now_ns)
    assert debts.wait_ns(ADDRESS, now_ns) == SECOND_NS


def test_those_that_owe_nothing_are_forgotten_when_there_are_many() -> None:
    debts = LogDebts()
    debts.charge(OTHER, CREDIT_BYTES + 60 * MIB, 0)
    for number in range(3 * DEBTORS_MAX):
        debts.charge(f"2001:db8::{number:x}", 1, number * SECOND_NS // 1_000)
    assert len(debts._paid_ns) <= DEBTORS_MAX
    assert debts.wait_ns(OTHER, 0) == 60 * SECOND_NS
