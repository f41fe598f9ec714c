"""The browser of these tests."""

from tests.browser.conftest import all_watched, browser, page, profile, serve_traces, watch

__all__ = ["all_watched", "browser", "page", "profile", "serve_traces", "watch"]
