"""Real file systems that a test fills, damages or cuts off."""
