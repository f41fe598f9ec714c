"""Words that the recorder writes into a trace and the reader looks for."""

METADATA = "overlapscope"
"""Key of the recorder's own metadata, a JSON object, at a trace's top level."""

WARM_UP_STEPS = "warm_up_steps"
"""Key in it: number of first `ProfilerStep`s recorded to fill the pipeline, and not to be judged."""

PLAIN_STEPS = "plain_steps"
"""Key in it: `{"before": {"host_ns": [...], "device_ns": [...]}, "after": {...}}`, the lengths of steps timed without
the profiler (`trace.PlainSteps`)."""

STEP_SOURCE = "step_source"
"""Key in it: what ended the steps, in words, such as `calls of ResNet.forward` (`Trace.step_source`)."""

THREADS = "threads"
"""Key in it: `{"1234": "MainThread", ...}`, Python's names of threads by the numbers that events have."""

MAIN_THREAD = "MainThread"
"""Python's name of the main thread."""

ORIGIN = "origin"
"""Key in it: `{"at_ns": ..., "job": ..., "commit": ..., "branch": ...}`, as far as known (`trace.TraceOrigin`)."""

PREDICTION = "prediction"
"""Key in it: `{"of": file, "interventions": [...]}`, in a prediction of `overlapscope whatif`."""

FRAMEWORK = "framework"
"""Key in it: framework of the program (`Trace.framework`), unless PyTorch."""
RECORDER = "recorder"
"""Key in it: recorder of a trace that was written anew (`Trace.recorder`), unless torch.profiler."""

TORCH = "torch"
"""Key in it: version of PyTorch, which Kineto does not write."""

EVENT_RECORD = "overlapscope::event_record#"
"""`overlapscope::event_record#NUMBER@DEVICE.STREAM` encloses the call that recorded an event on that stream."""

EVENT_WAIT = "overlapscope::event_wait#"
"""`overlapscope::event_wait#NUMBER@DEVICE.STREAM` encloses the call that makes that stream wait for record NUMBER; 0
where the record was not seen."""
