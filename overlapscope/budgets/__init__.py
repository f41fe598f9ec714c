"""Checks of reports against budgets and baselines."""
