"""Two reports -> a diff, and what comparing takes: which steps, how much noise; and what a diff shows."""
