"""ApiVersions (key 18): v0-4.

Behaviour:
- Returns the registry's table: every API with its advertised versions.
- The client's software name and version (v3+) must have the form that KIP-511 requires, otherwise
  INVALID_REQUEST.
- A request of a version above 4 gets a v0 response with UNSUPPORTED_VERSION and the whole table, so
  that the client can retry with a version from the table. Its body is not read, because its format
  is unknown. (Clients of Kafka 4.4 begin with v5.)

Deviations:
- No supported or finalised features are sent: they are tagged fields, which librdkafka before 2.2.0
  cannot skip. Without them, clients use the first transaction protocol.

Versions: 0 the table; 1 throttle time; 2 as 1; 3 flexible, client software in the request, and a
response header that never has tags; 4 fixes the encoding of features.
Layer 4; does no I/O.
"""

import functools
import re
from collections.abc import Iterable
from typing import Final

from compat.kafka.node import Node
from compat.kafka.protocol import messages
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import SERVED, Api, Fields, handles
from compat.kafka.protocol.wire import API_VERSIONS_KEY

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


def make_api(others: Iterable[Api]) -> Api:
    """Return the row of ApiVersions, whose response lists itself and all other APIs."""

    @handles(
        key=API_VERSIONS_KEY,
        name="ApiVersions",
        versions=(0, 4),
        flexible_from=3,
        needs=None,
        on_slave=SERVED,
    )
    def api_versions(node: Node, version: int, request: Fields) -> Fields | bytes:
        software = (
            request.get("client_software_name", "unknown"),
            request.get("client_software_version", "unknown"),
        )
        if not all(_SOFTWARE.fullmatch(text) for text in software):
            return {"error_code": ErrorCode.invalid_request, "api_keys": ()}
        return encode_table(version)

    @functools.cache
    def encode_table(version: int) -> bytes:
        return _encode(version, ErrorCode.none, (*others, api_versions))

    return api_versions


def encode_unsupported(apis: Iterable[Api]) -> bytes:
    """Encode the response body for a version that is not served."""
    return _encode(0, ErrorCode.unsupported_version, apis)


def _encode(version: int, error_code: ErrorCode, apis: Iterable[Api]) -> bytes:
    api_keys = [
        {"api_key": api.key, "min_version": api.versions[0], "max_version": api.versions[1]}
        for api in sorted(apis, key=lambda api: api.key)
    ]
    response: Fields = {"error_code": error_code, "api_keys": api_keys}
    return messages.encode_response(API_VERSIONS_KEY, version, response)
