"""Topics, partitions, their ConsumeQueue units, and the lookup from a unit to its frame."""
