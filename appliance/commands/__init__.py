"""The commands that ask a running broker: as a Kafka client, or through its admin API. Layer 6.

What a command needs to run is imported when it runs, so that `latermq --help` and every mistake in
an argument are answered at once.
"""
