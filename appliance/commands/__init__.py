"""The commands that query a running broker or read a data directory. Layer 6.

A command imports its dependencies when it runs, so that `latermq --help` and the report of a wrong
argument do not wait for them.
"""
