"""Two reports -> a diff; a report and budgets -> verdicts. Computing only: `views` draws both."""
