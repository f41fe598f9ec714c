"""Recorders for training frameworks, one optional module each; they begin, step and end a `Recording`."""
