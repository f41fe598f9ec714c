"""Traces as files for other viewers."""
