"""How often each address may do a thing."""

from appliance.allowance import ADDRESSES_MAX, Allowance

BURST = 100


def test_an_address_may_do_it_at_once_and_then_at_a_rate() -> None:
    allowance = Allowance(BURST, 5)
    assert [allowance.take("a", 0) for _ in range(BURST + 2)] == [True] * BURST + [False] * 2
    assert allowance.take("b", 0)
    assert [allowance.take("a", 1_000) for _ in range(7)] == [True] * 5 + [False] * 2
    assert sum(allowance.take("a", 3_600_000) for _ in range(2 * BURST)) == BURST


def test_more_addresses_than_are_remembered_share_an_allowance() -> None:
    allowance = Allowance(BURST, 5)
    assert all(allowance.take(str(number), 0) for number in range(ADDRESSES_MAX))
    taken = [allowance.take(f"more {number}", 0) for number in range(BURST + 5)]
    assert taken == [True] * BURST + [False] * 5
    assert allowance.remembered_count == ADDRESSES_MAX + 1
    assert allowance.take("later", 1_000)
    assert allowance.remembered_count == 2  # those that all further ones share
