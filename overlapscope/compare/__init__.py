"""Comparison of two reports: matching, figures, noise, and the document of a diff."""
