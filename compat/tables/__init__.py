"""A data directory as tables: record batches of Apache Arrow, for Spark, exports and notebooks."""
