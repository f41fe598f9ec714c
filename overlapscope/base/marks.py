"""What the recorder writes into a trace for the reader: the one place where both sides' words stand."""

METADATA = "overlapscope"
"""Key of the recorder's own metadata, a JSON object, at a trace's top level."""

WARM_UP_STEPS = "warm_up_steps"
"""In it: how many of the first `ProfilerStep`s were recorded so that the pipeline fills, not to be judged."""

PLAIN_STEPS = "plain_steps"
"""In it: `{"before": {"host_ns": [...], "device_ns": [...]}, "after": {...}}`, the lengths of steps that were timed
while nothing was recorded (`trace.PlainSteps`)."""

STEP_SOURCE = "step_source"
"""In it: what ended its steps, in words, such as `calls of ResNet.forward` (`Trace.step_source`)."""

ORIGIN = "origin"
"""In it: `{"at_ns": ..., "job": ..., "commit": ..., "branch": ...}`, as far as known (`trace.TraceOrigin`)."""

PREDICTION = "prediction"
"""In it: what makes a trace a prediction of `overlapscope whatif`, `{"of": file, "interventions": [...]}`."""

FRAMEWORK = "framework"
"""In it: what the program is written with (`Trace.framework`), where that is not PyTorch."""
RECORDER = "recorder"
"""In it: what recorded a trace that was written anew (`Trace.recorder`), where that was not torch.profiler."""

TORCH = "torch"
"""In it: the version of PyTorch, which Kineto does not write."""

EVENT_RECORD = "overlapscope::event_record#"
"""`overlapscope::event_record#NUMBER@DEVICE.STREAM` encloses the call that recorded an event on that stream."""

EVENT_WAIT = "overlapscope::event_wait#"
"""`overlapscope::event_wait#NUMBER@DEVICE.STREAM` encloses the call by which that stream waits for what record
NUMBER recorded; 0 where that was not seen."""
