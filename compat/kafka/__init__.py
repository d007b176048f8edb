"""The Kafka facade: unmodified Kafka clients use the broker through this package."""
