"""`overlapscope dashboard`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from overlapscope.base.output import tell
from overlapscope.base.words import listed
from overlapscope.commands import DONE
from overlapscope.commands._options import add_reading, less_common, parse_size, whole_number
from overlapscope.dashboard.launch import UPLOAD_BYTES, launch, open_browser, require_packages
from overlapscope.dashboard.pages import with_data

_MAX_RECENT = 20
"""Maximum number of recordings to open that nobody has named."""


def recent(directory: Path) -> list[Path]:
    """Return the latest recordings of `overlapscope run` and of torch.profiler in a directory, the newest first."""
    found = (path for ending in ("json", "json.gz") for path in directory.glob(f"*.trace.{ending}") if path.is_file())
    return sorted(found, key=lambda path: (-path.stat().st_mtime_ns, path.name))[:_MAX_RECENT]


class DashboardCommand:
    """Open traces in a browser: what does not overlap, why, and where in the
    code, with a timeline of every stream.

    A TRACE is a file (.json.gz, trace_view.json, .sqlite, .xplane.pb), a glob
    pattern, a directory to choose traces from (also from its subdirectories),
    or a report that `overlapscope ranks --format json` wrote. More traces can
    be dropped onto the page. Without any, the latest recordings in this
    directory are opened. Ctrl-C stops the server.

    Only this machine can reach the server, unless --host says otherwise. Each
    request needs the token in the printed address: a new token each time, or
    the value of OVERLAPSCOPE_TOKEN.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "traces",
            nargs="*",
            metavar="TRACE",
            help="trace file, directory of traces, glob pattern, report of ranks, or - for stdin",
        )
        parser.add_argument(
            "--port",
            type=whole_number("a port", 0, 65535),
            metavar="N",
            help="port to serve on (default: 8050, or a free one; 0: a free one)",
        )
        parser.add_argument("--host", default="127.0.0.1", metavar="NAME", help="address to serve (default: 127.0.0.1)")
        rare = less_common(parser)
        rare.add_argument("--base-path", default="/", metavar="PATH", help="URL path under which a proxy serves it")
        parser.add_argument(
            "--compare", action="store_true", help="open the page Compare: the first trace is before, the second after"
        )
        for name, page in with_data().items():
            parser.add_argument(f"--{name}", metavar="PATH", help=page.option)
        parser.add_argument("--no-open", action="store_true", help="do not open a browser")
        add_reading(rare)
        rare.add_argument(
            "--max-upload",
            metavar="SIZE",
            type=parse_size,
            default=UPLOAD_BYTES,
            help="largest total size of files dropped onto the page (default: 4GiB)",
        )

    def run(self, args: argparse.Namespace) -> int:
        require_packages()
        from overlapscope.reading.file_names import input_path

        base = args.base_path.strip("/")
        chosen = {page: choice for page in with_data() if (choice := getattr(args, page)) is not None}
        traces = [input_path(trace) for trace in args.traces] or ([] if chosen else recent(Path()))
        if traces and not args.traces:
            tell(f"No trace was named; these are the latest recordings here: {listed(traces, 3)}.")
        server, url = launch(
            traces,
            host=args.host,
            port=args.port,
            base=f"/{base}/" if base else "/",
            limit_bytes=args.max_size,
            cache=args.cache,
            upload_bytes=args.max_upload,
            compare=args.compare,
            chosen=chosen,
        )
        tell(f"Serving at {url}  (Ctrl-C to end)")
        if "SSH_CONNECTION" in os.environ:
            forward = f"ssh -L {server.port}:localhost:{server.port}"
            tell(f"From your own machine, run {forward} with this machine's name, then open that address there.")
        if not args.no_open:
            open_browser(url)
        server.run()
        tell("Stopped.")
        return DONE
