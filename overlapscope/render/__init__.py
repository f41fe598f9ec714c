"""Renderers of documents: terminal, markdown, HTML file."""
