"""What others speak: one package for each foreign protocol the broker is compatible with."""
