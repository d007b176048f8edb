"""The served APIs: one file each, named by the API key."""
