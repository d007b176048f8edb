"""The log as tables: what a scan for analysis plans, and its rows in columns."""
