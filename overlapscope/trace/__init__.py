"""The Trace: a profiler's recording as columns, and the meaning of its names."""
