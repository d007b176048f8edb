"""The settings of a broker, by section."""
