"""Recovery after any stop: what can be trusted, what is lost, where to continue."""
