"""Meanings of a report's other words: its figures, and the words for how something was determined."""

from __future__ import annotations

from typing import Final

TERMS: Final = {
    "report": "The results of `overlapscope analyze` on some traces; `overlapscope schema` describes its JSON.",
    # -- Figures -----------------------------------------------------------------------------------
    "window": "The time from the start of a device's first GPU op to the end of its last.",
    "span": "The length of the window, from the start of the first GPU op to the end of the last.",
    "step": "A ProfilerStep#N on the device: from its first op on the main stream to the first op of the next step. "
    "Where nothing marks steps, a step is a repeat, such as repeat 5 of 36, if repeats cover 90% of the recording.",
    "average step": "The mean of the judged steps: the whole ones, without a warm-up step and the last one. "
    "All figures that people read are of it; each percentage is a ratio of sums.",
    "range": "A record_function annotation, measured on the device like a step.",
    "lead-in": "The first part of the window, in which the device finished work that was queued before the recording.",
    "overlap efficiency": "(serial - busy) / (serial - ideal). 0%: one engine at a time; 100%: no order of the same "
    "work hides more. Narrow tables call it efficiency.",
    "serial": "The sum of the working times of the three engines (kernels, H2D copies, D2H copies).",
    "busy": "The time in which any of the three engines worked.",
    "ideal": "The longest of the three engines alone: no order of the same work is faster.",
    "hidden copy": "The copy time during which kernels ran.",
    "comm under compute": "The share of communication time during which other kernels ran.",
    "pipeline bubble": "The share of the steps of all stages of a pipeline in which a stage computes nothing. Tables "
    "call it bubble, and state it for each stage.",
    "stage": "The part of a model that one rank of a pipeline computes; interleaved, several parts. The first stage "
    "sends before it receives anything.",
    "communication": "Kernels that move data between GPUs, such as those of NCCL; most tables call it comm.",
    "prefetch depth": "How many layers' compute the host launches between an all-gather and the compute that waits for "
    "it: 0 without prefetching.",
    "expert": "A part of a model that computes only the tokens routed to it. Ranks send tokens to the experts of other "
    "ranks, and get the results back, in all-to-alls.",
    "load of experts": "The elements that a rank receives for its experts, as a multiple of the mean rank's. The rank "
    "with the highest load has most to compute. Tables call it load.",
    "net overlap": "What overlap hides, beside what it costs: how much longer kernels run next to communication or "
    "copies than equal kernels do alone, as an interval.",
    "alone": "Beside neither communication nor copies.",
    "never-alone": "Net overlap is not judged here: no equal kernel ran alone.",
    "too-few": "Net overlap is not judged here: too few equal kernels ran alone or beside other work.",
    "varying": "Net overlap is not judged here: the lengths of equal kernels vary too much.",
    "plain step": "A step of the program without the profiler.",
    "host stall": "A blocking call of the host. Its cost is the GPU idle time that it caused.",
    # -- Servers -----------------------------------------------------------------------------------
    "phase": "What a step of an inference server does for its requests. Phases are never averaged together.",
    "prefill": "A step whose requests have no output token yet: it computes their prompts, or parts of them.",
    "decode": "A step that computes the next tokens of requests.",
    "mixed": "A step with both requests that prefill and requests that decode.",
    "diffusion": "A step of a server of diffusion models.",
    "empty": "A step without requests, which a server may run beside those of other ranks.",
    "unclear": "A step whose mark doesn't tell whether its requests prefill or decode.",
    # -- Contracts ---------------------------------------------------------------------------------
    "contract": "What may overlap in a typical step, by the order of its calls; `overlapscope check` fails when "
    "it is lost.",
    "host sync": "A call in which the host waits for the GPU.",
    # -- Copies ------------------------------------------------------------------------------------
    "h2d": "Copies from the host to the device.",
    "d2h": "Copies from the device to the host.",
    "p2p": "Peer copies: from one GPU to another GPU of the same process.",
    "pageable": "Ordinary host memory (malloc): the driver stages copies through its own buffer, and the calls block.",
    "pinned": "Page-locked host memory: copies run at the full speed of the link, and the host does not have to wait.",
    "managed": "Memory that the driver moves between host and device by itself.",
    # -- Trust -------------------------------------------------------------------------------------
    "trusted": "Every trust check passed.",
    "degraded": "A trust check warned or failed: the figures it affects are in doubt.",
    "unusable": "Nothing ran on a GPU, or nothing can be said about it.",
    "ok": "The trust check found nothing.",
    "warn": "The trust check found something that puts figures in doubt.",
    "fail": "The trust check found that figures cannot be believed; in a check, that a budget is exceeded.",
    # -- Findings ----------------------------------------------------------------------------------
    "error": "The most severe finding; in a check, a budget that failed.",
    "warning": "A finding that costs time.",
    "info": "A finding that states a fact and costs nothing.",
    "both": "The finding is one of the recording and of the program without the profiler.",
    "recorded": "The finding is one of the recording only: without the profiler, the program does not have it. "
    "Instead of a verdict: figures are of the recording, while the program without the profiler is judged.",
    "plain": "The finding is one of the program without the profiler only: the recording does not show it.",
    "replay": "The recording was replayed with the fix, which shows what the fix saves.",
    "bound": "The fix saves at most this: the time that the finding explains.",
    "option": "The effort of a fix: an option of a call.",
    "line": "The effort of a fix: a line or two.",
    "restructuring": "The effort of a fix: another structure of the program.",
    # -- How something was determined --------------------------------------------------------------
    "exact": "The recording states it.",
    "rebuilt": "Worked out from the order of calls and the times of ops, because the recording does not state it.",
    "measured": "The recorder timed steps before and after the recording.",
    "told": "Given on the command line or in the settings.",
    # -- DataLoader --------------------------------------------------------------------------------
    "own-thread": "The DataLoader has no workers: the thread that runs the steps loads the samples.",
    "workers": "The DataLoader has worker processes.",
    "none": "There is no DataLoader in the recording.",
}
"""Terms by word, as printed."""
