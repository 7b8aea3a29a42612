"""Layers cut along their outputs, one slice per device."""
