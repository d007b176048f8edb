"""Projections, the state that follows from the log, and the replay that builds them."""
