"""The Kafka facade: unmodified Kafka clients talk to the broker through this package."""
