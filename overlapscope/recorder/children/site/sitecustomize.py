"""Every Python that finds this on its path imports it at its start: the processes that a recorded program starts do."""

import os
import sys

sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__)]
_this = sys.modules.pop(__name__)
try:
    # The one that this one stood before.
    import sitecustomize  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
except ImportError:
    pass
finally:
    sys.modules.setdefault(__name__, _this)

_root = os.environ.get("OVERLAPSCOPE_ROOT")
if _root is not None and "overlapscope" not in sys.orig_argv:
    sys.path.append(_root)
    try:
        from overlapscope.recorder.children import watch

        watch()
    except Exception:
        # A Python without what the recorder takes runs as it would without it.
        pass
    finally:
        sys.path.remove(_root)
