"""A check for programs: what CI systems and dashboards read, one module per format with `render`."""

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
"""All that a check can be written as, by name; what is for people is a document (`budgets.document`)."""
