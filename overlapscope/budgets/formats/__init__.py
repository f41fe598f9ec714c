"""Output formats of a check for CI systems and dashboards: a module for each, with `render`."""

from __future__ import annotations

from typing import Final

FORMATS: Final = {
    "text": "for people",
    "json": "everything, for programs",
    "junit": "JUnit XML test cases",
    "github": "GitHub Actions annotations",
    "gitlab": "GitLab code quality report",
    "markdown": "for a comment on a pull request",
    "html": "one file for a browser",
    "openmetrics": "for Prometheus",
}
"""Formats by name, including JSON, and those for people, which `budgets.document` makes."""
