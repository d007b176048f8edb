"""ApiVersions (key 18): v0-4.

Behaviour:
- Answers with the registry's table: every API with the versions that it advertises.
- The name and version of the client's software (v3+) must have the form that KIP-511 asks for,
  else INVALID_REQUEST.
- A version above 4 is answered in the form of v0, with UNSUPPORTED_VERSION and the whole table, so
  that the client can ask again in a version it finds there. Its body is not read: its form is
  unknown. (Clients of Kafka 4.4 begin with v5.)

Deviations:
- No features are sent, neither supported nor finalised: they are tagged fields, which librdkafka
  before 2.2.0 cannot skip. Without them clients keep to the first transaction protocol.

Versions: 0 the table; 1 throttle time; 2 as 1; 3 flexible, client software in the request, and a
response header that never has tags; 4 fixes how features are written.
Layer 4; does no I/O.
"""

import functools
import re
from collections.abc import Iterable
from typing import Final

from compat.kafka import messages
from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node
from compat.kafka.registry import Api, Fields, handles
from compat.kafka.wire import API_VERSIONS_KEY

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


def make_api(others: Iterable[Api]) -> Api:
    """Make the row of ApiVersions, which answers with itself and all the others."""

    @handles(key=API_VERSIONS_KEY, name="ApiVersions", versions=(0, 4), flexible_from=3)
    def api_versions(node: Node, version: int, request: Fields) -> Fields | bytes:
        software = (
            request.get("client_software_name", "unknown"),
            request.get("client_software_version", "unknown"),
        )
        if not all(_SOFTWARE.fullmatch(text) for text in software):
            return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": ()}
        return encode_table(version)

    @functools.cache
    def encode_table(version: int) -> bytes:
        return _encode(version, ErrorCode.NONE, (*others, api_versions))

    return api_versions


def encode_unsupported(apis: Iterable[Api]) -> bytes:
    """Encode the body that answers a version which is not served."""
    return _encode(0, ErrorCode.UNSUPPORTED_VERSION, apis)


def _encode(version: int, error_code: ErrorCode, apis: Iterable[Api]) -> bytes:
    api_keys = [
        {"api_key": api.key, "min_version": api.versions[0], "max_version": api.versions[1]}
        for api in sorted(apis, key=lambda api: api.key)
    ]
    response: Fields = {"error_code": error_code, "api_keys": api_keys}
    return messages.encode_response(API_VERSIONS_KEY, version, response)
