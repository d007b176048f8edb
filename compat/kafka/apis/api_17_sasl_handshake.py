"""SaslHandshake (key 17): v0-1.

Behaviour:
- This broker does not authenticate: every mechanism gets UNSUPPORTED_SASL_MECHANISM, and the list
  of enabled mechanisms is empty. A client that is configured to authenticate stops at once.
- The connection stays usable. An unframed token after a handshake of v0 is not a request, so it
  closes the connection.

Deviations:
- On a listener without SASL, Kafka sends ILLEGAL_SASL_STATE, which clients report as a broker
  error; this code names the cause.

Versions: 0 is followed by unframed tokens; 1 by SaslAuthenticate, which is not served because no
handshake succeeds. Both are advertised for librdkafka before 2.11.1, which otherwise assumes a
broker without SASL.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import SERVED, Fields, handles

_NEVER_FLEXIBLE: Final = 2
"""Both versions have the old encoding."""


@handles(
    key=17,
    name="SaslHandshake",
    versions=(0, 1),
    flexible_from=_NEVER_FLEXIBLE,
    needs=None,
    on_slave=SERVED,
)
def sasl_handshake(node: Node, version: int, request: Fields) -> Fields:
    """Refuse the mechanism."""
    return {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ()}
