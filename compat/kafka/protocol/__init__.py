"""The encoding of Kafka's protocol: bytes to values and back."""
