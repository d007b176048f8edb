"""A queue in which many entries of one client's address do not keep those of others waiting."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Addresses take turns; the entries of one come in their order. O(1)."""

    def __init__(self) -> None:
        """Begin without entries."""
        self._of_address: OrderedDict[str, deque[Item]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> Item:
        """The entry that `pop` would return. REQUIRES: there is one."""
        return next(iter(self._of_address.values()))[0]

    def append(self, address: str, item: Item) -> None:
        """Add an entry of an address; that of the broker's own entries is ""."""
        items = self._of_address.get(address)
        if items is None:
            items = self._of_address[address] = deque()
        items.append(item)
        self._count += 1

    def pop(self) -> Item:
        """Remove and return the first entry. REQUIRES: there is one."""
        address, items = self._of_address.popitem(last=False)
        item = items.popleft()
        if items:
            self._of_address[address] = items
        self._count -= 1
        return item
