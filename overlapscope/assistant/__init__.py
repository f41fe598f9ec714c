"""Answers assistants that ask over the Model Context Protocol (MCP): small, read-only, of given directories alone."""
