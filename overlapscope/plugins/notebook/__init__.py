"""Magics of IPython: `%load_ext overlapscope`, then `%%overlapscope` records a cell."""

from overlapscope.plugin import Plugin

PLUGIN = Plugin(name="notebook", api={"load_ipython_extension": f"{__name__}.magics:load_ipython_extension"})
