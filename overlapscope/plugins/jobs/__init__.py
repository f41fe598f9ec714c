"""Jobs of many ranks: their pipelines and experts, and predictions of their step by joint replays."""

from overlapscope.plugin import Plugin

PLUGIN = Plugin(
    name="jobs",
    kinds={"whatif-ranks": "a prediction"},
    jobs=f"{__name__}.whatif",
    ranks=f"{__name__}.ranks",
    schemas={"whatif-ranks": f"{__name__}.joint.result:JointWhatIf", "ranks-jobs": f"{__name__}.part:Jobs"},
)
