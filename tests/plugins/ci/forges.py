"""GitHub's GraphQL API and GitLab's REST API as far as a comment needs them, in a server of this process.

The answers have the fields that their documentation states; none was recorded.
"""

from __future__ import annotations

import io
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "ghs_0000"
BOT = 42


class Comments:
    """The comments on requests, and the requests to the API."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        """Comments: `id`, `request`, `body`, `own`."""
        self.pulls: list[dict[str, Any]] = []
        """Open pull requests as GraphQL returns them."""
        self.refuses = ""
        """Kind of error with which changes are refused."""
        self.artifact: dict[str, bytes] = {}
        """Files in the artifacts of the last job on GitLab's default branch."""
        self.asked: list[str] = []
        self.port = 0

    def add(self, request: str, body: str, *, own: bool) -> None:
        self.bodies.append({"id": len(self.bodies) + 1, "request": request, "body": body, "own": own})

    def of(self, request: str) -> list[str]:
        return [each["body"] for each in self.bodies if each["request"] == request]

    # -- GitHub -----------------------------------------------------------------------------------

    def graphql(self, asked: dict[str, Any]) -> dict[str, Any]:
        query, given = asked["query"], asked["variables"]
        if "mutation" in query and self.refuses:
            error = {
                "type": self.refuses,
                "path": ["addComment"],
                "locations": [{"line": 2, "column": 40}],
                "message": "Resource not accessible by integration",
            }
            return {"data": {"addComment": None}, "errors": [error]}
        if "pullRequests" in query:
            nodes = [pull for pull in self.pulls if pull["branch"] == given["branch"]]
            shown = [{key: value for key, value in pull.items() if key != "branch"} for pull in nodes]
            return {"data": {"repository": {"pullRequests": {"nodes": shown}}}}
        if "addComment" in query:
            self.add(given["id"], given["body"], own=True)
            return {"data": {"addComment": {"clientMutationId": None}}}
        if "updateIssueComment" in query:
            [comment] = [each for each in self.bodies if f"IC_{each['id']}" == given["id"]]
            comment["body"] = given["body"]
            return {"data": {"updateIssueComment": {"clientMutationId": None}}}
        of_request = [each for each in self.bodies if each["request"] == given["id"]]
        first = int(given["after"] or 0)
        page = of_request[first : first + 100]
        end = first + len(page)
        nodes = [{"id": f"IC_{each['id']}", "body": each["body"], "viewerDidAuthor": each["own"]} for each in page]
        info = {"hasNextPage": end < len(of_request), "endCursor": str(end) if page else None}
        return {"data": {"node": {"comments": {"pageInfo": info, "nodes": nodes}}}}

    # -- GitLab -----------------------------------------------------------------------------------

    def note(self, comment: dict[str, Any]) -> dict[str, Any]:
        author = {"id": BOT if comment["own"] else 7, "username": "someone", "name": "Someone", "state": "active"}
        return {
            "id": comment["id"],
            "type": None,
            "body": comment["body"],
            "author": author,
            "created_at": "2026-11-29T12:00:00.000Z",
            "system": comment.get("system", False),
            "noteable_type": "MergeRequest",
            "noteable_iid": 5,
            "resolvable": False,
            "confidential": False,
        }

    def packed(self) -> bytes:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            for name, content in self.artifact.items():
                file.writestr(name, content)
        return packed.getvalue()

    def gitlab(self, method: str, path: str, asked: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        if path == "/api/v4/user":
            return 200, {"id": BOT, "username": "project_3_bot_0", "name": "overlapscope", "bot": True}, {}
        match = re.fullmatch(
            r"/api/v4/projects/3/merge_requests/5/notes(?:/(\d+))?(?:\?per_page=100&page=(\d+))?", path
        )
        if match is None:
            return 404, {"message": "404 Not found"}, {}
        if method == "GET":
            page = int(match[2])
            shown = [self.note(each) for each in self.bodies[100 * page - 100 : 100 * page]]
            return 200, shown, {"X-Next-Page": str(page + 1) if 100 * page < len(self.bodies) else ""}
        if self.refuses:
            return 403, {"message": "403 Forbidden"}, {}
        if method == "POST":
            self.add("5", asked["body"], own=True)
            return 201, self.note(self.bodies[-1]), {}
        [comment] = [each for each in self.bodies if str(each["id"]) == match[1]]
        comment["body"] = asked["body"]
        return 200, self.note(comment), {}


@contextmanager
def forge() -> Iterator[Comments]:
    """Run both APIs on a port of this machine."""
    comments = Comments()

    class ForgeHandler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            comments.asked.append(f"{self.command} {self.path}")
            headers: dict[str, str] = {}
            if self.path == "/redirect":
                code, content, headers = 302, {}, {"Location": "/graphql"}
            elif self.path.startswith("/api/v4/projects/3/jobs/artifacts/main/download?job="):
                self.send_response(200 if comments.artifact else 404)
                self.end_headers()
                self.wfile.write(comments.packed())
                return
            elif self.headers.get("Authorization") != f"Bearer {TOKEN}" and self.headers.get("PRIVATE-TOKEN") != TOKEN:
                code, content = 401, {"message": "Bad credentials", "status": "401"}
            elif self.path == "/graphql":
                code, content = 200, comments.graphql(asked)
            else:
                code, content, headers = comments.gitlab(self.command, self.path, asked)
            data = json.dumps(content).encode()
            self.send_response(code)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), ForgeHandler) as server:
        comments.port = server.server_port
        # It notices within that many seconds that it is to end.
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield comments
        finally:
            server.shutdown()
            thread.join()
