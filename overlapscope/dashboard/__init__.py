"""The dashboard: a Dash application that shows what the analysis found. It computes nothing itself."""
