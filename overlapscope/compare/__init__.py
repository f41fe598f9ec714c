"""Two reports -> a diff, and what comparing takes: which steps, how much noise. Computing only; `views.diff` draws."""
