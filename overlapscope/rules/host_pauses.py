"""Rules: the GPU waits while the launching thread is held up, by Python or by the system."""

from __future__ import annotations

from overlapscope.analysis.host import around
from overlapscope.analysis.host_sampled import beside_others
from overlapscope.analysis.host_work import called_collections
from overlapscope.base.words import listed, plural
from overlapscope.catalog.causes import IdleCause
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._features import DATA_PARALLEL, features_of
from overlapscope.rules._lines import (
    fewer_threads,
    host_time,
    is_not_torch,
    most_in,
    other_threads,
    sampled_lines,
    top_line,
    with_lines,
)
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, name, on_claimed

# -- gc-pause ----------------------------------------------------------------------------------------


def _draft_gc_pause(claims: Claims, pieces: ClaimedPieces) -> Draft:
    called = around(called_collections(claims.trace), pieces.thread, pieces.at_ns) >= 0
    by_program = 2 * int(pieces.length_ns[called].sum()) > pieces.time_ns
    return Draft(
        afterword=f"{host_time(claims, pieces, IdleCause.GC_PAUSE)}{sampled_lines(claims)}",
        title=f"{claims.waits(pieces)} for Python's garbage collector",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} a collection held the launching thread."
        f"{' The program calls gc.collect().' * by_program}",
        advice=advice_by_case("gc-pause", claims.gpu)["called" if by_program else "fix"],
    )


GC_PAUSE = Rule(
    id="gc-pause",
    check=on_claimed("gc-pause", _draft_gc_pause),
    fixes=(("no-gc",),),
    effort="line",
)


# -- gil-wait ----------------------------------------------------------------------------------------


def _draft_gil_wait(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        afterword=f"{host_time(claims, pieces, IdleCause.GIL_WAIT)}{other_threads(claims)}{sampled_lines(claims)}",
        title=f"{claims.waits(pieces)} while another thread holds Python's lock",
        detail="Samples of the program without the profiler show the launching thread waiting for the global "
        "interpreter lock.",
        advice=claims.filled(DATA_PARALLEL)
        if features_of(claims.trace).data_parallel
        else advice_by_case("gil-wait", claims.gpu)["fix"],
    )


GIL_WAIT = Rule(
    id="gil-wait",
    check=on_claimed("gil-wait", _draft_gil_wait),
    fixes=(("less-host gil-wait",),),
    effort="restructuring",
)


# -- file-io -----------------------------------------------------------------------------------------


def _files(claims: Claims) -> str:
    """Return the files with the most samples, as the end of a sentence."""
    activity = claims.trace.host_activity
    if not activity.files:
        return ""
    named = sorted(activity.files, key=lambda file: (-activity.files[file], file))
    return f", most on {listed((name(file) for file in named), 3)}"


def _draft_file_io(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        where=top_line(claims, is_not_torch),
        afterword=f"{host_time(claims, pieces, IdleCause.FILE_IO)}{with_lines(claims, pieces, is_not_torch)}",
        title=f"{claims.waits(pieces)} while the host reads or writes files{most_in(claims, is_not_torch)}",
        detail="Samples of the program without the profiler show the launching thread in calls on "
        f"files{_files(claims)}.",
        advice=advice_by_case("file-io", claims.gpu)["fix"],
    )


FILE_IO = Rule(
    id="file-io",
    check=on_claimed("file-io", _draft_file_io),
    fixes=(("less-host file-io",),),
    effort="line",
)


# -- preempted ---------------------------------------------------------------------------------------


def _cpus(claims: Claims) -> str:
    """Return the CPUs and threads of the program, as the end of a sentence."""
    activity = claims.trace.host_activity
    if activity.facts.usable_cpus is None:
        return ""
    threads = activity.facts.torch_threads
    beside = "" if threads is None else f", and torch uses {plural(threads, 'thread')}"
    return f". It may use {plural(activity.facts.usable_cpus, 'CPU')}{beside}"


def _draft_preempted(claims: Claims, pieces: ClaimedPieces) -> Draft:
    others = beside_others(claims.trace.host_activity)
    by = " Meanwhile, other processes ran more than the program's other threads did." if others else ""
    return Draft(
        afterword=host_time(claims, pieces, IdleCause.PREEMPTED),
        title=f"{claims.waits(pieces)} while the launching thread has no CPU",
        detail=f"The system kept the launching thread waiting for a CPU{_cpus(claims)}.{by}",
        advice=("" if others else fewer_threads(claims)) + advice_by_case("preempted", claims.gpu)["fix"],
    )


PREEMPTED = Rule(
    id="preempted",
    check=on_claimed("preempted", _draft_preempted),
    fixes=(("less-host preempted",),),
    effort="option",
)


# -- cpu-throttled -----------------------------------------------------------------------------------


def _quota(claims: Claims) -> str:
    """Return the quota, as the end of a sentence."""
    quota = claims.trace.host_activity.facts.quota_cpus
    return "" if quota is None else f", because it had used up its quota of {quota:g} CPUs"


def _draft_cpu_throttled(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        afterword=host_time(claims, pieces, IdleCause.CPU_THROTTLED),
        title=f"{claims.waits(pieces)} while the CPU quota is used up",
        detail=f"The control group stopped the program{_quota(claims)}.",
        advice=advice_by_case("cpu-throttled", claims.gpu)["fix"],
    )


CPU_THROTTLED = Rule(
    id="cpu-throttled",
    check=on_claimed("cpu-throttled", _draft_cpu_throttled),
    fixes=(("less-host cpu-throttled",),),
    effort="option",
)
