"""Pending timers by due time, user ids, and the runs that persist both."""
