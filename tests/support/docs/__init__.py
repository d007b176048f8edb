"""Documents, golden files and source files that tests compare with the code."""
