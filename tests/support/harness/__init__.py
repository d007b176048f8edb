"""Brokers for tests: in process, on sockets, in a process of their own, before a crash."""
