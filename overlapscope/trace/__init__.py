"""The Trace: what a profiler recorded, as columns; and what its names mean."""
