"""What works in this installation, and what is missing or broken."""
