"""The hot paths, from request bytes to response bytes: produce, fetch, delay, deliver, cancel."""
