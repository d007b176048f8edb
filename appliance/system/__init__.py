"""The operating system: clocks, files, locks, systemd. Nothing else touches it."""
