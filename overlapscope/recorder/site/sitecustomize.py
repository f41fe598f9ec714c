"""Every Python that finds this on its path imports it at its start (`at_start`)."""

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

_root, _place = os.environ.get("OVERLAPSCOPE_ROOT"), os.environ.get("OVERLAPSCOPE_AT_START")
if _root is not None and _place is not None:
    # Where the program has it there itself, its place in the order stays.
    _added = _root not in sys.path
    if _added:
        sys.path.append(_root)
    try:
        from overlapscope.base.registry import load

        load(_place)()
    except Exception:
        # A Python without what we take runs as it would without it.
        pass
    finally:
        if _added:
            sys.path.remove(_root)
