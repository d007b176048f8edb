"""Bytes: format constants, the checked cursor, checksums, and Kafka's record batches."""
