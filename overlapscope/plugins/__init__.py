"""Plugins of this package, each a folder that the core finds (`overlapscope/plugin.py`) and never imports."""
