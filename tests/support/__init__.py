"""Tools that tests share: a virtual clock, a simulated file system, small configurations."""
