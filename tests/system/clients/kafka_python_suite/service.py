"""Takes the place of `test/service.py`, which kafka-python's source distribution lacks.

Its integration tests start Kafka by it, or stand by a broker that runs already, as they do here.
"""


class ExternalService:
    """A broker that somebody else started."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""


class SpawnedService:
    """Needed for the import alone."""
