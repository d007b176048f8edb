"""How many topics a client may create by naming them. Layer 3; does no I/O and reads no clock.

A request for metadata creates what it names. One that names ten thousand topics must not take the
place of everybody's.
"""

from typing import Final

from appliance.allowance import Allowance

BURST: Final = 100
"""Topics that an address may create at once."""

PER_S: Final = 5
"""Topics a second that it may create for ever."""


def auto_creation() -> Allowance:
    """Return the allowance of each address; it counts topics."""
    return Allowance(BURST, PER_S)
