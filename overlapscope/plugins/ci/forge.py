"""The comment on a pull request of GitHub, or on a merge request of GitLab: found by its marker, and replaced.

The request is the one that the system's description of the job names, or that its API finds; a recording or an artifact
never decides it. Only a comment of the same account is replaced.
"""

from __future__ import annotations

import os
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote

import msgspec

from overlapscope.base.words import clean
from overlapscope.errors import UsageError
from overlapscope.plugins.ci.comment import CommentedJob

_Kind = TypeVar("_Kind")

_TIMEOUT_S: Final = 30
_MAX_BYTES: Final = 32 << 20
_MAX_PAGES: Final = 50
"""Maximum number of pages of 100 comments to look at."""


class Forge(NamedTuple):
    """A job of GitHub Actions or GitLab CI, and where its comment belongs."""

    job: CommentedJob
    post: Callable[[str, str], Iterator[str]]
    """Function of a comment and its marker that creates or replaces it, and yields sentences on that.

    It raises UsageError.
    """


def current_job(artifact: str) -> Forge | None:
    """Return the job that this process is part of; None if it is none.

    Args:
        artifact: Name of the artifact with the recording.

    Raises:
        UsageError: The job is of no pull request or merge request.
    """
    if os.environ.get("GITHUB_ACTIONS") == "true":
        return _github(artifact)
    if os.environ.get("GITLAB_CI") == "true":
        return _gitlab()
    return None


# -- GitHub -------------------------------------------------------------------------------------------


_PULLS: Final = """
query($owner: String!, $name: String!, $branch: String!) {
  repository(owner: $owner, name: $name) {
    pullRequests(
      headRefName: $branch, states: OPEN, first: 100, orderBy: {field: UPDATED_AT, direction: DESC}
    ) { nodes { id number headRefOid headRepository { nameWithOwner } } }
  }
}"""
_COMMENTS: Final = """
query($id: ID!, $after: String) {
  node(id: $id) {
    ... on PullRequest {
      comments(first: 100, after: $after) {
        pageInfo { hasNextPage endCursor }
        nodes { id body viewerDidAuthor }
      }
    }
  }
}"""
_ADD: Final = """
mutation($id: ID!, $body: String!) { addComment(input: {subjectId: $id, body: $body}) { clientMutationId } }"""
_UPDATE: Final = """
mutation($id: ID!, $body: String!) { updateIssueComment(input: {id: $id, body: $body}) { clientMutationId } }"""


def _github(artifact: str) -> Forge:
    event = _event()
    repository = _part(event, str, "repository", "full_name")
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    artifacts = f"{server}/{repository}/actions/runs/{_variable('GITHUB_RUN_ID')}#artifacts"
    if pull := event.get("pull_request"):
        id, number = _part(pull, str, "node_id"), _part(pull, int, "number")
        job = CommentedJob(base=_part(pull, str, "base", "ref"), artifacts=artifacts)
        return Forge(job, lambda text, marker: _post_on_github(id, number, text, marker))
    run = event.get("workflow_run")
    if not run or _part(run, str, "event") != "pull_request":
        raise UsageError("this job is of no pull request; run it on the event pull_request or workflow_run.")
    base = _part(event, str, "repository", "default_branch")
    conclusion = {"success": "passed", "failure": "failed"}.get(str(run.get("conclusion")), "has no result")
    download = (
        "gh",
        "run",
        "download",
        str(_part(run, int, "id")),
        "--repo",
        repository,
        "--name",
        artifact,
        "--dir",
        "pull-request",
    )
    job = CommentedJob(
        base=base,
        recording=shlex.join(download),
        artifacts=artifacts,
        conclusion=f"This judges by the limits of {base}. The job of the branch itself {conclusion}.",
    )
    return Forge(job, lambda text, marker: _post_for_run(repository, run, text, marker))


def _event() -> dict[str, Any]:
    """Return GitHub's description of the event that started the job. Raises UsageError."""
    try:
        return msgspec.json.decode(Path(_variable("GITHUB_EVENT_PATH")).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"GitHub's event can't be read ({clean(str(error), 200)}).") from None


def _post_for_run(repository: str, run: object, text: str, marker: str) -> Iterator[str]:
    """Post the comment on the open pull requests whose newest commit is that of a run."""
    owner, _, name = repository.partition("/")
    answer = _graphql(_PULLS, owner=owner, name=name, branch=_part(run, str, "head_branch"))
    newest = (_part(run, str, "head_sha"), _part(run, str, "head_repository", "full_name"))
    pulls = [
        pull
        for pull in _part(answer, list[Any], "repository", "pullRequests", "nodes")
        if (_part(pull, str, "headRefOid"), _value_at(pull, "headRepository", "nameWithOwner")) == newest
    ]
    if not pulls:
        yield "No comment: the pull request has newer commits, or is closed."
    for pull in pulls:
        yield from _post_on_github(_part(pull, str, "id"), _part(pull, int, "number"), text, marker)


def _post_on_github(id: str, number: int, text: str, marker: str) -> Iterator[str]:
    authored = (each for each in _github_comments(id) if _part(each, bool, "viewerDidAuthor"))
    existing_id = next((_part(each, str, "id") for each in authored if _has_marker(each, marker)), None)
    if existing_id is None:
        _graphql(_ADD, id=id, body=text)
    else:
        _graphql(_UPDATE, id=existing_id, body=text)
    yield f"{'Wrote' if existing_id is None else 'Renewed'} the comment on pull request {number}."


def _github_comments(id: str) -> Iterator[object]:
    after = None
    for _ in range(_MAX_PAGES):
        answer = _graphql(_COMMENTS, id=id, after=after)
        yield from _part(answer, list[Any], "node", "comments", "nodes")
        page = ("node", "comments", "pageInfo")
        if not _part(answer, bool, *page, "hasNextPage"):
            return
        after = _part(answer, str, *page, "endCursor")


def _graphql(query: str, **variables: str | None) -> Any:
    """Return the data of an answer of GitHub's GraphQL API. Raises UsageError."""
    address = os.environ.get("GITHUB_GRAPHQL_URL", "https://api.github.com/graphql")
    headers = {"Authorization": f"Bearer {_variable('GITHUB_TOKEN')}"}
    answer, _ = _ask("POST", address, headers, {"query": query, "variables": variables})
    errors = answer.get("errors") if isinstance(answer, dict) else None
    if errors or not isinstance(answer, dict):
        kind = errors[0].get("type", "") if isinstance(errors, list) and isinstance(errors[0], dict) else ""
        _refuse("GitHub", clean(str(kind), 40) or "an error", "`permissions: pull-requests: write`")
    return answer.get("data")


# -- GitLab -------------------------------------------------------------------------------------------


def _gitlab() -> Forge:
    number = os.environ.get("CI_MERGE_REQUEST_IID", "")
    if not (number.isascii() and number.isdecimal()):
        raise UsageError("this job is of no merge request; run it in pipelines of merge requests.")
    project = quote(_variable("CI_MERGE_REQUEST_PROJECT_ID"), safe="")
    address = f"{_variable('CI_API_V4_URL')}/projects/{project}/merge_requests/{number}/notes"
    job = CommentedJob(
        base=_variable("CI_MERGE_REQUEST_TARGET_BRANCH_NAME"),
        recording=f"git fetch origin merge-requests/{number}/head && git checkout FETCH_HEAD",
        artifacts=f"{os.environ.get('CI_JOB_URL', '')}/artifacts/browse",
    )
    return Forge(job, lambda text, marker: _post_on_gitlab(address, number, text, marker))


def _post_on_gitlab(address: str, number: str, text: str, marker: str) -> Iterator[str]:
    user = _part(_gitlab_api("GET", f"{_variable('CI_API_V4_URL')}/user")[0], int, "id")
    authored = (note for note in _notes(address) if _part(note, int, "author", "id") == user)
    existing_id = next(
        (_part(each, int, "id") for each in authored if not _value_at(each, "system") and _has_marker(each, marker)),
        None,
    )
    if existing_id is None:
        _gitlab_api("POST", address, text)
    else:
        _gitlab_api("PUT", f"{address}/{existing_id}", text)
    yield f"{'Wrote' if existing_id is None else 'Renewed'} the comment on merge request {number}."


def _notes(address: str) -> Iterator[object]:
    for page in range(1, _MAX_PAGES + 1):
        answer, headers = _gitlab_api("GET", f"{address}?per_page=100&page={page}")
        yield from _part(answer, list[Any])
        if not headers.get("X-Next-Page"):
            return


def _gitlab_api(method: str, address: str, body: str | None = None) -> tuple[Any, Message]:
    headers = {"PRIVATE-TOKEN": _variable("OVERLAPSCOPE_GITLAB_TOKEN")}
    return _ask(method, address, headers, None if body is None else {"body": body})


# -- HTTP ---------------------------------------------------------------------------------------------


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect, since the token would go along."""


def _ask(method: str, address: str, headers: dict[str, str], body: object = None) -> tuple[Any, Message]:
    """Return the answer of an API, as decoded JSON, and its headers. Raises UsageError."""
    data = None if body is None else msgspec.json.encode(body)
    all_headers = {"Content-Type": "application/json", "User-Agent": "overlapscope", **headers}
    system = "GitHub" if "Authorization" in headers else "GitLab"
    if not address.startswith(("https://", "http://")):
        raise UsageError(f"{clean(address, 100)}: is no address of an API.")
    try:
        request = urllib.request.Request(address, data, all_headers, method=method)
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(_MAX_BYTES)), answer.headers
    except urllib.error.HTTPError as error:
        needs = "a GITHUB_TOKEN" if system == "GitHub" else "an OVERLAPSCOPE_GITLAB_TOKEN with the scope api"
        _refuse(system, f"HTTP {error.code}", needs)
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"{system} could not be asked ({type(error).__name__}); run the job again.") from None


def _refuse(system: str, reason: str, needs: str) -> NoReturn:
    raise UsageError(f"{system} refuses the comment ({reason}); the job needs {needs}.")


def _has_marker(comment: object, marker: str) -> bool:
    return _part(comment, str, "body").splitlines()[:1] == [marker]


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise UsageError(f"{name} is not set; the comment needs it.")
    return value


def _part(answer: object, kind: type[_Kind], *path: str) -> _Kind:
    """Return a part of an event or of an answer. Raises UsageError if it isn't there."""
    try:
        return msgspec.convert(_value_at(answer, *path), kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"GitHub or GitLab answers otherwise than expected ({clean(str(error), 200)}).") from None


def _value_at(answer: Any, *path: str) -> object:
    """Return a part of an event or of an answer; None if it isn't there."""
    for name in path:
        answer = answer.get(name) if isinstance(answer, dict) else None
    return answer
