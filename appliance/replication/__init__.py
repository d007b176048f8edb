"""Replication of the log from a master to a slave; docs/REPLICATION.md."""
