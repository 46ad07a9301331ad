"""Where bytes come from: local files, HTTP, a hub, and whatever fsspec knows."""
