"""Cost models: seconds of calls, updates and copies on given devices."""
