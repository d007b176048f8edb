"""SaslHandshake (key 17): v0-1.

Behaviour:
- This broker authenticates nobody: every mechanism is UNSUPPORTED_SASL_MECHANISM, and the list of
  those that are enabled is empty. A client that was told to authenticate ends with that, at once.
- The connection can be used on, as if nothing had been asked. What a client sends unframed after
  a handshake of v0 is no request, and closes it.

Deviations:
- Kafka answers ILLEGAL_SASL_STATE on a listener without SASL, which clients take for a fault of
  the broker's; this code says what is meant.

Versions: 0 is followed by tokens without a frame; 1 by SaslAuthenticate, which is not served since
no handshake succeeds. Both lie inside the range for librdkafka before 2.11.1, which else takes the
broker for one without SASL.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node
from compat.kafka.registry import Fields, handles

_NEVER_FLEXIBLE: Final = 2
"""Both versions have the old encoding."""


@handles(key=17, name="SaslHandshake", versions=(0, 1), flexible_from=_NEVER_FLEXIBLE)
def sasl_handshake(node: Node, version: int, request: Fields) -> Fields:
    """Refuse the mechanism."""
    return {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": ()}
