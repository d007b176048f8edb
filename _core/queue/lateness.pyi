LATENESS_BOUNDS_MS: tuple[float, ...]
