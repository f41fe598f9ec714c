"""Server for assistants over the Model Context Protocol (MCP): small answers, read-only, about given directories."""
