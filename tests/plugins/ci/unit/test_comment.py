"""The comment on a pull request of GitHub or a merge request of GitLab, kept by a real client on a local server."""

from __future__ import annotations

import json
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt

from overlapscope.base.saved import encode
from overlapscope.commands import main
from overlapscope.documents.colors import palette
from overlapscope.plugins.ci import comment
from tests.core.budgets.test_check_formats import HOSTILE, OF_GITLAB, REFERENCES, with_name
from tests.plugins.ci.forges import TOKEN, Comments, forge
from tests.plugins.ci.toys import BROKEN, GOOD
from tests.support.check_results import result, unknown, verdict

MARKER = "<!-- overlapscope:overlapscope -->"
HOSTILE_BRANCH = 'main`-->"$(id)<img/src=x>@everyone#1::error::x%0A##[error]x/close'


@pytest.fixture
def comments() -> Iterator[Comments]:
    with forge() as running:
        yield running


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of a job, with the recording of a change that broke overlap, and that of the base."""
    monkeypatch.chdir(tmp_path)
    for system in ("GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(system, raising=False)
    shutil.copy(GOOD, "before.trace.json.gz")
    shutil.copy(BROKEN, "after.trace.json.gz")
    (tmp_path / "check.json").write_bytes(encode(result(verdict())))
    return tmp_path


def github(monkeypatch: pytest.MonkeyPatch, comments: Comments, event: dict[str, Any], job: Path) -> None:
    (job / "event.json").write_text(json.dumps(event))
    for name, value in {
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_PATH": str(job / "event.json"),
        "GITHUB_GRAPHQL_URL": f"http://127.0.0.1:{comments.port}/graphql",
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_RUN_ID": "99",
        "GITHUB_TOKEN": TOKEN,
    }.items():
        monkeypatch.setenv(name, value)


def gitlab(monkeypatch: pytest.MonkeyPatch, comments: Comments, **more: str) -> None:
    given = {
        "GITLAB_CI": "true",
        "CI_API_V4_URL": f"http://127.0.0.1:{comments.port}/api/v4",
        "CI_JOB_URL": "https://gitlab.example/team/model/-/jobs/12",
        "CI_MERGE_REQUEST_IID": "5",
        "CI_MERGE_REQUEST_PROJECT_ID": "3",
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
        "OVERLAPSCOPE_GITLAB_TOKEN": TOKEN,
        **more,
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)


def pull_event(base: str = "main") -> dict[str, Any]:
    """Return GitHub's event of a pull request, without the parts that say nothing here."""
    return {
        "action": "synchronize",
        "number": 12,
        "pull_request": {
            "node_id": "PR_12",
            "number": 12,
            "head": {"ref": "topic", "sha": "a" * 40, "repo": {"full_name": "team/model", "fork": False}},
            "base": {"ref": base, "sha": "b" * 40, "repo": {"full_name": "team/model"}},
        },
        "repository": {"id": 1, "full_name": "team/model", "default_branch": "main", "owner": {"login": "team"}},
        "sender": {"login": "someone"},
    }


def run_event(branch: str = "patch-1", conclusion: str = "failure", **more: Any) -> dict[str, Any]:
    """Return GitHub's event after a workflow of a fork's pull request, whose list of pull requests is empty."""
    run = {
        "id": 77,
        "name": "overlapscope",
        "event": "pull_request",
        "head_branch": branch,
        "head_sha": "a" * 40,
        "head_repository": {"id": 2, "full_name": "stranger/model", "fork": True},
        "conclusion": conclusion,
        "pull_requests": [],
        **more,
    }
    repository = {"id": 1, "full_name": "team/model", "default_branch": "main", "owner": {"login": "team"}}
    return {"action": "completed", "workflow_run": run, "repository": repository}


def pull(
    id: str, *, oid: str = "a" * 40, head: str | None = "stranger/model", branch: str = "patch-1"
) -> dict[str, Any]:
    owner = None if head is None else {"nameWithOwner": head}
    return {"id": id, "number": int(id[3:]), "headRefOid": oid, "headRepository": owner, "branch": branch}


def comment_on(*more: str, trace: str = "after.trace.json.gz") -> int:
    return main(["ci", "comment", "--check", "check.json", *more, "--", trace])


# -- one comment --------------------------------------------------------------------------------------


def test_one_comment_on_github_is_kept_up_to_date(
    job: Path, comments: Comments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    github(monkeypatch, comments, pull_event(), job)
    # The marker in someone else's comment means nothing, nor does it within a comment of the same account.
    comments.add("PR_12", f"{MARKER}\nmine", own=False)
    comments.add("PR_12", f"> {MARKER}\n{MARKER}", own=True)
    for number in range(120):
        comments.add("PR_12", f"talk {number}", own=True)
    others = comments.of("PR_12")
    assert comment_on("--before", "before.trace.json.gz", "--picture", "overlap.png") == 0
    (job / "check.json").write_bytes(encode(result()))
    assert comment_on("--before", "before.trace.json.gz") == 0
    assert comments.of("PR_12")[:-1] == others
    body = comments.of("PR_12")[-1]
    assert body.startswith(f"{MARKER}\n# overlapscope check: passed")
    err = capsys.readouterr().err
    assert "Wrote the comment on pull request 12." in err and "Renewed the comment on pull request 12." in err
    assert "(https://github.com/team/model/actions/runs/99#artifacts)" in body
    assert (job / "overlap.png").read_bytes()[:4] == b"\x89PNG"


def test_one_note_on_gitlab_is_kept_up_to_date(job: Path, comments: Comments, monkeypatch: pytest.MonkeyPatch) -> None:
    gitlab(monkeypatch, comments)
    comments.add("5", f"{MARKER}\nmine", own=False)
    for number in range(120):
        comments.add("5", f"talk {number}", own=True)
    assert comment_on("--before", "before.trace.json.gz") == 0
    assert comment_on("--before", "before.trace.json.gz") == 0
    assert len(comments.of("5")) == 122
    assert comments.of("5")[0].endswith("mine")
    assert "(https://gitlab.example/team/model/-/jobs/12/artifacts/browse)" in comments.of("5")[-1]
    assert "git fetch origin merge-requests/5/head && git checkout FETCH\\_HEAD" not in comments.of("5")[-1]
    assert "git fetch origin merge-requests/5/head && git checkout FETCH_HEAD" in comments.of("5")[-1]


def test_checks_with_names_of_their_own_have_a_comment_each(
    job: Path, comments: Comments, monkeypatch: pytest.MonkeyPatch
) -> None:
    github(monkeypatch, comments, pull_event(), job)
    for name in ("vision", "speech", "vision"):
        assert comment_on("--name", name) == 0
    assert [body.splitlines()[0] for body in comments.of("PR_12")] == [
        "<!-- overlapscope:vision -->",
        "<!-- overlapscope:speech -->",
    ]
    assert comment.marker("x --> <b>\n--!>") == "<!-- overlapscope:x-b -->"


# -- forks --------------------------------------------------------------------------------------------


def test_the_pull_request_of_a_fork_is_found_by_its_branch_and_commit(
    job: Path, comments: Comments, monkeypatch: pytest.MonkeyPatch
) -> None:
    comments.pulls = [
        pull("PR_1", head="other/model"),
        pull("PR_2", oid="c" * 40),
        pull("PR_3", head=None),
        pull("PR_4", branch="patch-2"),
        pull("PR_5"),
    ]
    github(monkeypatch, comments, run_event(), job)
    assert comment_on() == 0
    assert [each["request"] for each in comments.bodies] == ["PR_5"]
    body = comments.of("PR_5")[0]
    assert "This judges by the limits of main. The job of the branch itself failed." in body
    assert "gh run download 77 --repo team/model --name overlapscope --dir pull-request" in body


def test_nothing_is_written_for_a_commit_that_is_no_longer_the_newest(
    job: Path, comments: Comments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comments.pulls = [pull("PR_2", oid="c" * 40)]
    github(monkeypatch, comments, run_event(), job)
    assert comment_on() == 0
    assert comments.bodies == [] and "newer commits, or is closed" in capsys.readouterr().err


def test_nothing_that_came_with_the_recording_decides_where_the_comment_goes(
    job: Path, comments: Comments, monkeypatch: pytest.MonkeyPatch
) -> None:
    comments.pulls = [pull("PR_5")]
    github(monkeypatch, comments, run_event(pull_requests=[{"number": 1, "node_id": "PR_1"}]), job)
    for name in ("pr_number", "NR", "pull_request.json"):
        (job / name).write_text("1")
    assert comment_on() == 0
    assert [each["request"] for each in comments.bodies] == ["PR_5"]


def test_a_run_of_a_push_has_no_comment(
    job: Path, comments: Comments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    github(monkeypatch, comments, run_event(event="push"), job)
    assert comment_on() == 2
    assert comments.asked == [] and "of no pull request" in capsys.readouterr().err


# -- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"GITHUB_TOKEN": "wrong"}, "HTTP 401"),
        ({"GITHUB_TOKEN": ""}, "GITHUB_TOKEN is not set"),
        ({"refuses": "FORBIDDEN"}, "FORBIDDEN); the job needs `permissions: pull-requests: write`"),
        ({"GITHUB_GRAPHQL_URL": "http://127.0.0.1:1/graphql"}, "could not be asked"),
        ({"GITHUB_GRAPHQL_URL": "file:///etc/passwd"}, "is no address"),
        ({"GITHUB_EVENT_PATH": "check.json"}, "GitHub or GitLab answers otherwise"),
        ({"GITHUB_GRAPHQL_URL": "redirect"}, "HTTP 302"),
    ],
)
def test_what_keeps_a_comment_from_being_written_is_said_in_a_sentence(
    change: dict[str, str],
    says: str,
    job: Path,
    comments: Comments,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    github(monkeypatch, comments, pull_event(), job)
    comments.refuses = change.pop("refuses", "")
    for name, value in change.items():
        monkeypatch.setenv(name, f"http://127.0.0.1:{comments.port}/redirect" if value == "redirect" else value)
    assert comment_on() == 2
    err = capsys.readouterr().err
    assert says in err and TOKEN not in err and "internal error" not in err
    assert comments.bodies == []


def test_gitlab_refuses_in_a_sentence_too(
    job: Path, comments: Comments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gitlab(monkeypatch, comments)
    comments.refuses = "x"
    assert comment_on() == 2
    assert "GitLab refuses the comment (HTTP 403)" in capsys.readouterr().err
    # The dashboard prints the token that is in OVERLAPSCOPE_TOKEN, so GitLab's token is never that one.
    gitlab(monkeypatch, comments, OVERLAPSCOPE_GITLAB_TOKEN="", OVERLAPSCOPE_TOKEN=TOKEN)
    assert comment_on() == 2
    assert "OVERLAPSCOPE_GITLAB_TOKEN is not set" in capsys.readouterr().err
    gitlab(monkeypatch, comments, CI_MERGE_REQUEST_IID="")
    assert comment_on() == 2
    assert "of no merge request" in capsys.readouterr().err


# -- what it says -------------------------------------------------------------------------------------


def test_it_says_what_failed_where_and_since_the_base_branch(job: Path) -> None:
    assert main(["contract", "write", "before.trace.json.gz"]) == 0
    assert main(["check", "after.trace.json.gz", "--format", "json:check.json"]) == 1
    assert comment_on("--before", "before.trace.json.gz", "-o", "overlap.md", "--picture", "overlap.png") == 0
    body = (job / "overlap.md").read_text()
    visible = body.split("<details>")[0]
    assert "overlap lost: H2D 33.6 MB" in visible and "At prefetch.py:13 in upload." in visible
    assert "Step 21.7% slower (2.767 to 3.366 ms)" in visible
    assert "overlapscope diff before.trace.json.gz after.trace.json.gz" in body
    assert body.count("<details>") == body.count("</details>")


def test_a_check_that_failed_to_run_is_no_pass(job: Path) -> None:
    (job / "check.json").unlink()
    (job / "after.trace.json.gz").write_bytes(b"no recording")
    assert comment_on("--before", "before.trace.json.gz", "-o", "overlap.md") == 0
    body = (job / "overlap.md").read_text()
    assert "nothing was checked" in body and "This is no pass." in body and "passed" not in body


def test_a_check_of_another_recording_is_no_pass(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "before.trace.json.gz", "--format", "json:check.json"]) == 0
    assert comment_on("-o", "overlap.md") == 0
    assert "# overlapscope check: nothing was checked" in (job / "overlap.md").read_text()
    assert "check.json: is the check of other recordings: before.trace.json.gz." in capsys.readouterr().err


def test_a_recording_that_the_change_did_not_renew_is_said_to_show_nothing(job: Path) -> None:
    shutil.copy("before.trace.json.gz", "after.trace.json.gz")
    assert comment_on("--before", "before.trace.json.gz", "-o", "overlap.md") == 0
    assert "The change was not recorded, so this says nothing about it" in (job / "overlap.md").read_text()


def test_without_a_recording_of_the_base_nothing_is_compared(job: Path) -> None:
    assert comment_on("--before", "missing.json.gz", "-o", "overlap.md") == 0
    body = (job / "overlap.md").read_text()
    assert "There is no readable recording of the base branch" in body and "overlapscope diff" not in body


def test_it_fits_into_a_comment_of_github_whatever_fails(job: Path) -> None:
    long = "<|`@&#1:x:" * 500
    verdicts = [
        base(budget=long, metric=long, message=long, where=long) for base in (verdict, unknown) for _ in range(300)
    ]
    (job / "check.json").write_bytes(encode(result(*verdicts, summary=long, warnings=(long,) * 50)))
    assert comment_on("--before", "before.trace.json.gz", "-o", "overlap.md") == 0
    body = (job / "overlap.md").read_text()
    assert len(body) <= 65_536 and len(body.encode()) <= 65_536
    assert "590 more are listed below" in body or "595 more are listed below" in body
    assert body.count("<details>") == body.count("</details>")


# -- hostile text ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*HOSTILE.values(), f"{REFERENCES} {OF_GITLAB}"], ids=[*HOSTILE, "references"])
def test_no_name_becomes_markup_a_link_a_mention_or_a_command(
    name: str, job: Path, comments: Comments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = json.loads(encode(with_name(name[:2000])))
    # A check has these names from overlapscope alone, or is refused.
    for reason in (each for item in checked["verdicts"] for each in item["reasons"]):
        reason |= {"rule": "pageable-memory", "cause": "pageable-memory"}
    (job / "check.json").write_text(json.dumps(checked))
    github(monkeypatch, comments, pull_event(HOSTILE_BRANCH), job)
    assert comment_on(trace="none") == 0
    bodies = [each["body"] for each in comments.bodies]
    comments.bodies = []
    gitlab(monkeypatch, comments, CI_MERGE_REQUEST_TARGET_BRANCH_NAME=HOSTILE_BRANCH, GITHUB_ACTIONS="")
    assert comment_on(trace="none") == 0
    bodies += [each["body"] for each in comments.bodies]
    assert len(bodies) == 2
    for body in bodies:
        assert body.splitlines()[1] == "# overlapscope check: failed"
        harmless(body)
    log = "".join(capsys.readouterr())
    assert not re.search(r"^\s*::|##\[", log, re.MULTILINE)


def test_a_message_is_no_command_of_the_runner(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "##[error]x\n::error::y.json.gz"]) == 2
    err = capsys.readouterr().err
    assert "error]x" in err and not re.search(r"^\s*::|##\[", err, re.MULTILINE)


def test_a_branch_is_harmless_beside_a_comparison_and_a_picture(
    job: Path, comments: Comments, monkeypatch: pytest.MonkeyPatch
) -> None:
    github(monkeypatch, comments, pull_event(HOSTILE_BRANCH), job)
    for recording in ("before.trace.json.gz", "after.trace.json.gz"):
        assert comment_on("--before", recording) == 0
        [body] = comments.of("PR_12")
        assert "[Picture of the step before and after](https://github.com/team/model/actions/runs/99" in body
        assert "everyone" in body
        harmless(body)


def harmless(body: str) -> None:
    """Assert that a comment has no markup except for ours."""
    assert body.count("-->") == 1 and body.count("<!--") == 1
    # A quick action of GitLab's.
    assert not re.search(r"^\s*/", re.sub(r"^```.*?^```$", "", body, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(body)
    links = []
    for token in (inner for outer in tokens for inner in (outer, *(outer.children or []))):
        assert token.type not in ("image", "s_open", "code_block", "hr")
        if token.type == "link_open":
            links.append(token.attrs["href"])
        if token.type in ("html_block", "html_inline"):
            ours = re.sub(r"<!-- overlapscope:[\w.-]+ -->|</?(details|summary)>", "", token.content)
            assert "<" not in ours, token.content
        if token.type in ("text", "html_block"):
            seen = unescape(token.content)
            assert not re.search(r"@\w|(?<!ProfilerStep)#\d|www\.|\w://|[A-Z]-\d", seen), seen
    assert all(str(link).startswith("https://github.com/team/model/actions/runs/99") for link in links)


@pytest.mark.parametrize("name", [text for text in HOSTILE.values() if 0 < len(text) < 200 and "\0" not in text])
def test_names_of_files_stay_text_in_the_command(name: str, job: Path) -> None:
    file = re.sub("[/\ud800-\udfff]", "_", name) + ".trace.json.gz"
    assert comment_on("-o", "overlap.md", f"--before={file}", trace=file) == 0
    body = (job / "overlap.md").read_text()
    fence = re.search(r"^```sh\n(.*?)\n```$", body, re.MULTILINE | re.DOTALL)
    assert fence is not None and "```" not in fence[1] and "\n" not in fence[1]
    tokens = MarkdownIt("commonmark", {"html": True}).parse(body)
    assert [token.type for token in tokens if token.type == "fence"] == ["fence"]


# -- the picture -------------------------------------------------------------------------------------


def test_the_picture_shows_where_the_copy_runs_alone_after_the_change(job: Path) -> None:
    assert comment_on("--before", "before.trace.json.gz", "-o", "overlap.md", "--picture", "overlap.png") == 0
    pixels = read_png((job / "overlap.png").read_bytes())
    color = bytes.fromhex(palette(dark=False)["exposed-copy"].removeprefix("#"))
    copy_alone = (pixels == tuple(color)).all(axis=2)
    # The legend has a square of this color; only the lower half has a row.
    middle = pixels.shape[0] // 2
    assert copy_alone[30:middle].sum() == 0
    widest = copy_alone[middle:].sum(axis=1).max()
    assert 0.15 < widest / 1000 < 0.21
    assert (job / "overlap.png").stat().st_size < 20_000


def read_png(data: bytes) -> Any:
    """Return the pixels of a PNG without filters, whose checksums must be right."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        [length] = struct.unpack(">I", data[place : place + 4])
        kind, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length : place + 12 + length])[0] == zlib.crc32(kind + content)
        chunks[kind], place = content, place + 12 + length
    width, height, depth, color = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, color) == (8, 2) and list(chunks)[-1] == b"IEND"
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)
