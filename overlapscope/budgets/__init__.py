"""A report, budgets and a baseline -> verdicts. Computing only: `views.check` draws them."""
