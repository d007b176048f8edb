"""Oracles in plain Python: models, and rules for histories."""
