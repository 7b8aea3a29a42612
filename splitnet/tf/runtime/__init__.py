"""Devices, settings, driver and log lines of the machine at hand."""
