"""What the other words of a report mean: its figures, and the words that say how something is known."""

from __future__ import annotations

from typing import Final

TERMS: Final = {
    "report": "What `overlapscope analyze` found in some traces; `overlapscope schema` says what its JSON holds.",
    # -- figures
    "span": "The length of the window: from the start of the first GPU op to the end of the last one.",
    "step": "A ProfilerStep#N on the device: from the first op launched in it on the main stream to the next step's.",
    "range": "A record_function annotation, told on the device as a step is.",
    "lead-in": "The window's part in which the device still worked off what was queued before the recording.",
    "efficiency": "Overlap efficiency: (serial - busy) / (serial - ideal). 0%: one engine at a time; 100%: nothing "
    "hides better.",
    "serial": "What the three engines (kernels, H2D copies, D2H copies) worked, added up.",
    "busy": "The time in which any of the three engines worked.",
    "ideal": "The longest of the three engines alone: no order of the same work is faster.",
    "hidden copy": "Copy time beside which kernels ran.",
    "comm under compute": "The share of communication beside which other kernels ran.",
    "plain step": "A step of the program while nothing is recorded.",
    "host stall": "A blocking call of the host. Its cost is the idle time of the GPU that followed because of it.",
    # -- copies
    "h2d": "Copies from the host to the device.",
    "d2h": "Copies from the device to the host.",
    "pageable": "Host memory as malloc gives it: the driver stages copies through its own buffer, and calls block.",
    "pinned": "Page-locked host memory: copies go at the link's full speed and beside the host's work.",
    "managed": "Memory that the driver moves between host and device by itself.",
    # -- trust
    "trusted": "Every trust check passed.",
    "degraded": "A trust check warned or failed: what rests on what it speaks of is in doubt.",
    "unusable": "Nothing ran on a GPU, or nothing can be said of it.",
    "ok": "The trust check found nothing.",
    "warn": "The trust check found something that puts figures in doubt.",
    "fail": "The trust check found that figures cannot be believed; in a check, that a budget is exceeded.",
    # -- findings
    "error": "The gravest of findings; in a check, a budget that fails it.",
    "warning": "A finding that costs time.",
    "info": "A finding that says how things are and costs nothing.",
    "replay": "The cost is known by replaying the recording with the fix.",
    "bound": "The cost is at most this: the time that the finding answers for.",
    # -- how it is known
    "exact": "The recording says so itself.",
    "rebuilt": "Which op waited for which was worked out from the order of calls and the times of ops.",
    "measured": "The recorder timed plain steps around the recording.",
    "told": "Given on the command line or in the settings.",
    "estimated": "Computed from the recording, between two bounds.",
    # -- DataLoader
    "own-thread": "The DataLoader has no workers: samples are made in the thread of the steps.",
    "workers": "The DataLoader has worker processes.",
    "none": "There is no DataLoader in the recording.",
}
"""By word, as it is printed."""
