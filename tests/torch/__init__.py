"""Tests that need torch."""
