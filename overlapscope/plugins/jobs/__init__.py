"""Jobs of many ranks: predictions of their step by joint replays."""

from overlapscope.plugin import Plugin

PLUGIN = Plugin(
    name="jobs",
    kinds={"whatif-ranks": "a prediction"},
    jobs=f"{__name__}.whatif",
    schemas={"whatif-ranks": f"{__name__}.joint.result:JointWhatIf"},
)
