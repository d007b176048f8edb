"""URLs of servers that the broker asks, which settings hold. Layer 1; does no I/O."""

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from appliance.config.setting import Address, parse_address

ENDPOINT_COUNT_MAX: Final = 9
"""Members of an etcd cluster are 3 or 5, seldom 7."""


class Endpoint(NamedTuple):
    """`http://HOST:PORT` or `https://HOST:PORT`."""

    host: str
    port: int
    is_secure: bool

    @property
    def netloc(self) -> str:
        """HOST:PORT."""
        return str(Address(self.host, self.port))

    def __str__(self) -> str:
        return f"{'https' if self.is_secure else 'http'}://{self.netloc}"


def parse_endpoint(text: str) -> Endpoint:
    """Parse a URL that has a scheme, a host and a port, and nothing else.

    Raises:
        ValueError: the text is not valid; the message says what is wrong. It does not repeat a
            password that is in it.
    """
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.netloc:
        raise ValueError("expected http://HOST:PORT or https://HOST:PORT")
    if "@" in url.netloc:
        raise ValueError("a URL must not have a user and a password")
    if url.path not in ("", "/") or url.query or url.fragment:
        raise ValueError("a URL must not have a path")
    host, port = parse_address(url.netloc)
    return Endpoint(host, port, url.scheme == "https")


def read_endpoints(value: object) -> tuple[Endpoint, ...]:
    """Read URLs with spaces between them, or what was read before.

    Raises:
        TypeError, ValueError: that is not valid.
    """
    if isinstance(value, tuple):
        return value
    if not isinstance(value, str):
        raise TypeError("it is not a string")
    endpoints = tuple(parse_endpoint(word) for word in value.split())
    if len(endpoints) > ENDPOINT_COUNT_MAX:
        raise ValueError(f"it has {len(endpoints)} URLs")
    if len(set(endpoints)) < len(endpoints):
        raise ValueError("it has the same URL twice")
    return endpoints
