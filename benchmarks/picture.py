"""A Plotly figure as a picture, taken with a browser."""

from __future__ import annotations

import tempfile
from pathlib import Path

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright

from tests.browser import chromium


def save(figure: go.Figure, target: Path) -> None:
    """Write the figure, of the size that its layout says, as a PNG."""
    width, height = int(figure.layout.width), int(figure.layout.height)
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        page_file = Path(directory, "plot.html")
        figure.write_html(page_file, include_plotlyjs=True, config={"staticPlot": True})
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=2)
        page.goto(page_file.as_uri())
        page.locator(".main-svg").first.wait_for()
        page.locator(".plotly-graph-div").screenshot(path=target)
        browser.close()
