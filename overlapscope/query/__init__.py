"""SQL over traces and analysis results: tables, the engine, and output formats."""
