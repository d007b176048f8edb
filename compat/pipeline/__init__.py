"""Keeps Parquet tables of a data directory up to date, by a job on Spark; docs/PIPELINE.md."""
