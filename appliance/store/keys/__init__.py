"""The key index: where in the log are the records of a key and the timers of an id."""
