"""Long fuzzing, and every variant of what other rooms test by example."""
