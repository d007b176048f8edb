"""Kafka connections on sockets, and their limits."""
