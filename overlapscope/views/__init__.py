"""Report -> text. Views draw what the analysis measured and compute nothing of their own but sums of it."""
