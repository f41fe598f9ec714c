"""A check drawn for a terminal, a review, a CI system: one module per format, each with `render`."""

from __future__ import annotations

from typing import Final

FORMATS: Final = {
    "text": "for people",
    "json": "everything, for programs",
    "junit": "test cases in JUnit's XML",
    "github": "annotations of GitHub Actions",
    "gitlab": "GitLab's code quality report",
    "markdown": "for a comment on a pull request",
    "html": "one file for a browser",
    "openmetrics": "for Prometheus",
}
"""By name: the module of this package, and what it is for."""
