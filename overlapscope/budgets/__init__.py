"""A report, budgets and a baseline -> verdicts, and what they are shown as."""
