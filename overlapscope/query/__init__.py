"""SQL over traces and what was found in them: the tables that there are, the engine that asks, what is written."""
