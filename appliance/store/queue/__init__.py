"""ConsumeQueue files."""
