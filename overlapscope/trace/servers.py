"""Recordings of inference servers: marks of steps, and the batch that each states. The table of marks is the only one.

The forms come from the sources of the servers. A mark must match as a whole. Its named groups state the batch:

- `prefill`, `decode` and `unclear` are numbers of requests, `prefill_tokens` and `decode_tokens` tokens in this step;
- `requests` and `tokens` are of all of them;
- `mode` is a name in `MODES`, which states the phase; otherwise the numbers of requests do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Final, Literal, cast, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.columns import mask_of
from overlapscope.base.marks import STEP
from overlapscope.trace.model import Trace

Phase = Literal["prefill", "decode", "mixed", "diffusion", "empty", "unclear"]
"""Work of a step. `empty` has no requests, and the mark of `unclear` doesn't tell prefill from decode."""

MARKS: Final[dict[str, tuple[str, ...]]] = {
    "vLLM": (
        # Until 2026-01, later chunks of a prompt counted as cached.
        r"execute_new_(?P<prefill>\d+)_cached_(?P<unclear>\d+)",
        # The first number in parentheses counts tokens, and others add up their squares and products.
        r"execute_(?:\d+_)?context_(?P<prefill>\d+)\((?:sq)?(?P<prefill_tokens>\d+)[^)]*\)"
        r"_generation_(?P<decode>\d+)\((?:sq)?(?P<decode_tokens>\d+)[^)]*\)",
    ),
    "SGLang": (
        r"step\[(?P<mode>\w+)(?: bs=(?P<requests>\d+))?(?: toks=(?P<tokens>\d+))?"
        r"(?: (?:ext|c)=(?P<prefill>\d+) (?:dec|g)=(?P<decode>\d+))?"
        r"(?: c_sq=(?P<prefill_tokens>\d+))?(?: c_\w+=\d+)*(?: g_sq=(?P<decode_tokens>\d+))?(?: \w+=\d+)*\]",
        # An iteration of the loop, around the marks of its forward passes.
        r"scheduler\.run_batch",
    ),
    "ATOM": (r"(?P<mode>prefill|decode)\[bs=(?P<requests>\d+)(?:/\d+)? tok=(?P<tokens>\d+) .*\]",),
    "TensorRT-LLM": (
        # Older versions don't number their steps.
        r"\[Executor\] _forward_step(?: \d+)?: (?P<prefill>\d+) ctx reqs,"
        r"(?: (?P<prefill_tokens>\d+) ctx tokens,)? (?P<decode>\d+) gen reqs",
    ),
    # Only decoding is launched as a graph.
    "LMDeploy": (r"forward_(?P<mode>cudagraph|eager)",),
    "xDiT": (r"execute_(?P<mode>diffusion)_(?P<requests>\d+)_\d+x\d+",),
}
"""Regular expressions of the names of ranges that are steps, by server."""

MODES: Final[dict[str, Phase]] = {
    "extend": "prefill",
    "prefill": "prefill",
    "split_prefill": "prefill",
    "decode": "decode",
    "cudagraph": "decode",
    "target_verify": "decode",
    "mixed": "mixed",
    "diffusion": "diffusion",
    "idle": "empty",
}
"""Phases by modes of servers, in lower case. Those of other modes are unclear."""

_DRAFT: Final = re.compile(r"step\[DRAFT_\w+ .*\]|draft(?:_extend|_model_forward)?")
"""Names of SGLang's and LMDeploy's ranges of a part of a speculative step, which is or has what looks like a mark."""
_SPECULATIVE: Final = re.compile(r"step\[(?:DRAFT_\w+|TARGET_VERIFY) .*\]")
"""Names of SGLang's marks of speculative steps, whose requests have several tokens."""
_NUMBER: Final = re.compile(r"[0-9]{1,15}")

Patterns = Sequence[re.Pattern[str]]


class StepBatch(Struct, frozen=True):
    """Requests of a step, as far as its mark states them. Numbers are None where it doesn't."""

    phase: Phase
    requests: int | None = None
    tokens: int | None = None
    """Tokens that the step computes."""
    decode_requests: int | None = None
    """Requests of a mixed step that decode; all others prefill."""
    decode_tokens: int | None = None
    """Their tokens."""


@lru_cache(maxsize=1)
def _mark_patterns() -> Patterns:
    return tuple(re.compile(pattern) for patterns in MARKS.values() for pattern in patterns)


def batches(names: Iterable[str], further: Patterns = ()) -> dict[str, StepBatch]:
    """Return the batch that each name of a recording's ranges states, without the names that mark no step of a server.

    `further` are the user's own marks, which are tried first.
    """
    marks, guessing, found = (*further, *_mark_patterns()), False, dict[str, StepBatch]()
    for name in names:
        guessing |= _SPECULATIVE.fullmatch(name) is not None
        match = next((match for mark in marks if (match := mark.fullmatch(name))), None)
        if match is not None and not is_draft(name):
            found[name] = _batch_of_mark(match.groupdict())
    # SGLang leaves out the tokens of a step in which each request has one.
    single = {name: batch for name, batch in found.items() if name.startswith("step[") and batch.phase == "decode"}
    if not guessing:
        found |= {name: replace(batch, tokens=batch.tokens or batch.requests) for name, batch in single.items()}
    return found


def marks_in(trace: Trace, further: Patterns = ()) -> dict[str, StepBatch]:
    """Return the `batches` that the ranges of a recording state."""
    notes = trace.annotations
    used = np.flatnonzero(mask_of(notes.name_id, len(notes.names))).tolist()
    return batches((notes.names[name_id] for name_id in used), further)


def is_draft(name: str) -> bool:
    """Return whether a server puts a range of this name around the guesses of a speculative step."""
    return _DRAFT.fullmatch(name) is not None


def server_of(name: str) -> str:
    """Return the server that marks steps by a name; the configuration for a mark of the user's."""
    servers = (server for server, patterns in MARKS.items() if any(re.fullmatch(each, name) for each in patterns))
    return next(servers, "the configuration")


def _batch_of_mark(groups: dict[str, str | None]) -> StepBatch:
    """Return the batch that the groups of a mark state."""
    number = {name: int(text) for name, text in groups.items() if text and _NUMBER.fullmatch(text)}
    parts = [number[part] for part in ("prefill", "decode", "unclear") if part in number]
    phase = MODES.get((groups.get("mode") or "").lower()) or _phase(number)
    tokens = {"prefill": number.get("prefill_tokens"), "decode": number.get("decode_tokens")}
    both = None if None in tokens.values() else sum(count or 0 for count in tokens.values())
    is_mixed = phase == "mixed"
    return StepBatch(
        phase,
        requests=number.get("requests", sum(parts) if parts else None),
        tokens=number.get("tokens", tokens.get(phase, both)),
        decode_requests=number.get("decode") if is_mixed else None,
        decode_tokens=tokens["decode"] if is_mixed else None,
    )


def _phase(number: dict[str, int]) -> Phase:
    """Return the phase of a batch by its numbers of requests."""
    prefills, decodes = number.get("prefill", 0) > 0, number.get("decode", 0) > 0
    if not {"prefill", "decode"} & number.keys() or number.get("unclear"):
        return "unclear"
    return "mixed" if prefills and decodes else "prefill" if prefills else "decode" if decodes else "empty"


def combined(within: Iterable[StepBatch]) -> StepBatch:
    """Return the batch of a step that states none, from those of the marks within it."""
    stated = {*within}
    phases = {batch.phase for batch in stated}
    if len(stated) == 1:
        return stated.pop()
    return StepBatch(phases.pop()) if len(phases) == 1 else StepBatch("unclear")


# -- Other recordings of servers --------------------------------------------------------------------

_CAPTURE: Final = re.compile(r"capture_\d+_\w+")
"""Ranges that vLLM and patched servers put around a capture of a graph, with its size."""

_FRONT_ENDS: Final[dict[str, str]] = {
    "vLLM": r"vllm/v1/engine/async_llm\.py\(\d+\): .*",
    "SGLang": r"sglang/srt/managers/(?:de)?tokenizer_manager\.py\(\d+\): .*",
    "LMDeploy": r"lmdeploy/serve/.*\.py\(\d+\): .*",
    "TensorRT-LLM": r"tensorrt_llm/(?:serve/.*|executor/proxy)\.py\(\d+\): .*",
}
"""Regular expressions of the Python functions of the process that talks to clients, by server."""


WAITS: Final[tuple[tuple[re.Pattern[str], re.Pattern[str] | None], ...]] = (
    # vLLM waits for its queue, unless there is work.
    (re.compile(r"vllm/v1/engine/core\.py\(\d+\): _process_input_queue"), re.compile(r"threading\.py\(\d+\): wait$")),
    # SGLang's loop calls these if there is no batch to run.
    (re.compile(r"sglang/srt/.*\.py\(\d+\): (?:on_idle|self_check_during_idle|maybe_sleep)$"), None),
)
"""Python functions in which servers wait for requests: a function, and one inside it in which it waits."""

_PART: Final = re.compile(r"(?:-DP-|(?<![a-z])dp)(\d+)|-(EXTEND|DECODE)(?=\.trace\.json)")
"""Parts of names of files: a replica of the model, and a stage that SGLang recorded on its own."""


_MERGED: Final = re.compile(r"merged-(.+)\.trace\.json\.gz")


def is_front_end_file(name: str) -> bool:
    """Return whether vLLM writes recordings of its front end to files of this name."""
    return ".async_llm." in name


def merged_files(names: Sequence[str]) -> set[str]:
    """Return the names of files into which SGLang has merged those of its ranks, if any of these is there."""
    merged = [match for name in names if (match := _MERGED.fullmatch(name))]
    return {match[0] for match in merged if any(name.startswith(f"{match[1]}-TP-") for name in names)}


def file_parts(names: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a server's recording in files, such as `DECODE` and `EXTEND`; empty if names state none."""
    stated = map(_PART.findall, names)
    parts = [" ".join(f"DP {replica}" if replica else stage for replica, stage in each) for each in stated]
    return tuple(parts) if all(parts) and len({*parts}) == len(parts) else ()


def is_capture(name: str) -> bool:
    """Return whether a server puts a range of this name around a capture of a graph."""
    return _CAPTURE.fullmatch(name) is not None


def front_end(trace: Trace) -> str | None:
    """Return the server whose front end a recording is of; None for any other recording.

    A front end runs nothing on a GPU, and marks no steps.
    """
    if (
        len(trace.gpu_ops)
        or len(trace.runtime_calls)
        or trace.annotations.named(lambda name: phase_in(name) is not None).any()
    ):
        return None
    if is_front_end_file(PurePath(trace.source).name):
        return "vLLM"
    frames = trace.python_frames
    return next((each for each, names in _FRONT_ENDS.items() if frames.named(re.compile(names).search).any()), None)


# -- Names of steps --------------------------------------------------------------------------------

_STEP_NAME: Final = re.compile(
    rf"{STEP}\d+ \(({'|'.join(get_args(Phase))})(?:: (\d{{1,15}}) requests?(?:, (\d{{1,15}}) decode)?)?"
    r"(?:[:;] (\d{1,15}) tokens?(?:, (\d{1,15}) decode)?)?\)"
)


def step_name(number: int, batch: StepBatch) -> str:
    """Return the name of a server's step, which has all that is known of its batch.

    Example: `ProfilerStep#3 (mixed: 9 requests, 7 decode; 607 tokens, 7 decode)`.
    """
    counted = []
    for what, count, decode in (
        ("request", batch.requests, batch.decode_requests),
        ("token", batch.tokens, batch.decode_tokens),
    ):
        if count is not None:
            counted.append(f"{count} {what}{'' if count == 1 else 's'}{'' if decode is None else f', {decode} decode'}")
    return f"{STEP}{number} ({': '.join(filter(None, (batch.phase, '; '.join(counted))))})"


def phase_in(step: str) -> Phase | None:
    """Return the phase in the name of a step; None for a step that no server marked."""
    batch = batch_in(step)
    return None if batch is None else batch.phase


def batch_in(step: str) -> StepBatch | None:
    """Return the batch in the name of a step; None for a step that no server marked."""
    match = _STEP_NAME.fullmatch(step)
    if match is None:
        return None
    counts = match.groups()[1:]
    requests, decode_requests, tokens, decode_tokens = (None if text is None else int(text) for text in counts)
    return StepBatch(cast(Phase, match[1]), requests, tokens, decode_requests, decode_tokens)
