"""The broker: storage, schedule, and the loop around them. docs/ARCHITECTURE.md is the tour."""
