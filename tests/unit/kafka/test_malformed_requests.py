"""A Produce or Fetch request that is malformed closes the connection, and nothing of it is done."""

import pytest

from tests.support.clients.produce_client import PAIR, VERSIONS, next_offset
from tests.support.clients.wire_client import WireClient, framed
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request

PLACEHOLDER = "no-text"
NO_TEXT = b"no\xfftext"


def send(client: WireClient, data: bytes) -> None:
    """Send bytes, which close the connection."""
    client.send_bytes(data)
    client.harness.flush()
    assert client.take() == b""
    assert client.session.close_reason is not None
    assert "malformed" in client.session.close_reason


@pytest.mark.parametrize("version", VERSIONS)
def test_produce_to_a_topic_whose_name_is_no_text(client: WireClient, version: int) -> None:
    """The answer would repeat it, and most clients could not read that."""
    data = framed(produce_request([("t", [(0, PAIR)]), (PLACEHOLDER, [(0, PAIR)])]), version, 1)
    send(client, data.replace(PLACEHOLDER.encode(), NO_TEXT))
    assert next_offset(client) == 0


@pytest.mark.parametrize("version", range(4, 13))
def test_fetch_of_a_topic_whose_name_is_no_text(client: WireClient, version: int) -> None:
    data = framed(fetch_request([(PLACEHOLDER, [fetch_part(0, 0)])]), version, 1)
    send(client, data.replace(PLACEHOLDER.encode(), NO_TEXT))
