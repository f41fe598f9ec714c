"""Edits of a program that make the changes which were tried on it."""

from __future__ import annotations

import ast
import importlib
import io
import os
import sys
import tokenize
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.errors import MissingPackage
from overlapscope.plugins.trials import rewrite as call_edits
from overlapscope.plugins.trials.changes import CHANGES
from overlapscope.plugins.trials.edit import AHEAD, edits
from overlapscope.plugins.trials.protocol import Facts, Loader, Module, Optimizer, Setting, Uploads
from overlapscope.plugins.trials.rewrite import Wish, rewrite
from overlapscope.recorder.program_lines import CodeLine

WORKERS, PIN, NON_BLOCKING = Setting("workers", "6"), Setting("pin"), Setting("non-blocking")
PREFETCH, COMPILE, FUSED = Setting("prefetch"), Setting("graph", "compile"), Setting("fused")
PLAIN = Path(__file__).parents[3] / "programs" / "plain"


class EditedScript:
    """A script, and the effects of its lines. A line is named by something that it alone, or first, has in it."""

    def __init__(self, path: Path, source: str = "") -> None:
        self.path = path / "train.py" if source else path
        if source:
            self.path.write_text(dedent(source), encoding="utf-8", newline="")

    def site(self, text: str, library: str = "") -> CodeLine:
        lines = self.path.read_text(encoding="utf-8").split("\n")
        return CodeLine(str(self.path), next(i for i, line in enumerate(lines, 1) if text in line), library)

    def loader(
        self, text: str, library: str = "", *, loop: str = "", num_workers: int = 0, pin_memory: bool = False
    ) -> Loader:
        return Loader(
            site=self.site(text, library),
            loop=self.site(loop) if loop else None,
            iterable=False,
            num_workers=num_workers,
            pin_memory=pin_memory,
            on_gpu=False,
        )

    def upload(
        self,
        text: str,
        method: Literal["to", "cuda", "copy_"] = "to",
        library: str = "",
        *,
        pinned: bool = False,
        from_loader: bool = False,
    ) -> Uploads:
        return Uploads(
            site=self.site(text, library),
            method=method,
            pinned=pinned,
            non_blocking=False,
            from_loader=from_loader,
        )

    def module(self, text: str, name: str = "Net", library: str = "") -> Module:
        return Module(site=self.site(text, library), name=name, compiled=False)

    def optimizer(self, text: str, name: str = "AdamW", library: str = "") -> Optimizer:
        return Optimizer(site=self.site(text, library), name=name, takes_fused=True, fused=False)

    def edited(
        self,
        *settings: Setting,
        loader: Loader | None = None,
        upload: Uploads | None = None,
        module: Module | None = None,
        optimizer: Optimizer | None = None,
    ) -> tuple[str, str]:
        """Return the lines that are new, and the advice."""
        facts = Facts(
            cuda=True,
            cpus=8,
            loaders=(loader,) if loader else (),
            uploads=(upload,) if upload else (),
            modules=(module,) if module else (),
            optimizers=(optimizer,) if optimizer else (),
        )
        result, files = edits(facts, settings, self.path.parent)
        before = self.path.read_text(encoding="utf-8").splitlines()
        after = files[0].after.decode().splitlines() if files else before
        return "\n".join(line.strip() for line in after if line not in before), "\n".join(result.advice)


# -- loaders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "from torch.utils.data import DataLoader\nloader = DataLoader(texts, 16)\n",
        "import torch\nloader = torch.utils.data.DataLoader(texts, 16)\n",
        "import torch.utils.data as td\nloader = td.DataLoader(texts, 16)\n",
        "from torch.utils import data\nloader = data.DataLoader(texts, 16)\n",
        "from torch.utils.data import DataLoader as DL\nloader = DL(texts, 16)  # DataLoader(\n",
        "from torch.utils.data import *\nloader = DataLoader(texts, 16)\n",
        "from torch.utils.data import DataLoader\nDL = DataLoader\nloader = DL(texts, 16)\n",
        "def loaders():\n    from torch.utils.data.dataloader import DataLoader\n    loader = DataLoader(texts, 16)\n",
    ],
)
def test_a_data_loader_gets_workers_and_pinned_memory_however_it_is_imported(tmp_path: Path, source: str) -> None:
    program = EditedScript(tmp_path, source)
    line, advice = program.edited(WORKERS, PIN, loader=program.loader("loader = "))
    assert "(texts, 16, num_workers=6, persistent_workers=True, pin_memory=True)" in line
    assert not advice


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("DataLoader(texts, **options)", "the call's options are passed with a star"),
        ("DataLoader(texts, 16, True, None, None, 0)", "the call's options are passed by position"),
        ("DataLoader(texts), DataLoader(others)", "there are several `DataLoader(` on that line"),
        ("make_loader(texts)", "there is no `DataLoader(` on that line"),
        ("partial(DataLoader, texts)()", "there is no `DataLoader(` on that line"),
        ("Loaders.DataLoader(texts)", "there is no `DataLoader(` on that line"),
    ],
)
def test_what_is_not_clear_is_reported_in_words(tmp_path: Path, call: str, reason: str) -> None:
    program = EditedScript(
        tmp_path, f"from torch.utils.data import DataLoader\nfrom mine import Loaders\nloader = {call}\n"
    )
    line, advice = program.edited(WORKERS, loader=program.loader("loader = "))
    assert not line
    assert advice == (
        f"{program.path}:3: Pass `num_workers=6, persistent_workers=True` to `DataLoader`."
        f" The diff leaves this out because {reason}."
    )


def test_a_line_that_makes_a_data_loader_is_edited_although_a_library_has_a_hand_in_it(tmp_path: Path) -> None:
    program = EditedScript(tmp_path, "from torch.utils.data import DataLoader\nloader = DataLoader(texts)\n")
    line, advice = program.edited(PIN, loader=program.loader("loader =", "lightning"))
    assert (line, advice) == ("loader = DataLoader(texts, pin_memory=True)", "")


def test_options_that_are_there_are_replaced_and_others_stay(tmp_path: Path) -> None:
    program = EditedScript(
        tmp_path,
        "from torch.utils.data import DataLoader\nloader = DataLoader(texts, num_workers = o.workers, shuffle=True)\n",
    )
    line, _ = program.edited(WORKERS, loader=program.loader("loader ="))
    assert line == "loader = DataLoader(texts, num_workers = 6, shuffle=True, persistent_workers=True)"


def test_a_loader_that_has_enough_workers_or_pinned_batches_is_left_alone(tmp_path: Path) -> None:
    program = EditedScript(tmp_path, "from torch.utils.data import DataLoader\nloader = DataLoader(texts)\n")
    assert program.edited(WORKERS, PIN, loader=program.loader("loader =", num_workers=8, pin_memory=True)) == ("", "")


ARGUMENTS = st.lists(
    st.sampled_from(
        ["batch_size=16", "shuffle = not (a, b)", "collate_fn=lambda x, y=1: [x]", "num_workers=0", "sampler=S(1, 2)"]
        + ["pin_memory=False", "generator=(g for g in h)", "batch_sampler='a,)#'", "persistent_workers=x"]
    ),
    max_size=5,
    unique_by=lambda text: text.split("=")[0].strip(),
)


@st.composite
def calls(draw: st.DrawFn) -> str:
    """Calls of DataLoader, in usual and unusual layouts."""
    args = ["self.texts", *draw(ARGUMENTS)]
    inner = draw(st.sampled_from(["", " ", "\n        ", "\n\t\t", "  # why\n        ", "\n# ä\n\n      "]))
    comma = draw(
        st.sampled_from([", ", ",", ",\n        ", ",  # so, (much\n          ", " , ", ",\n        # next\n        "])
    )
    end = draw(
        st.sampled_from(["", ",", " ", "\n    ", ",\n    ", ",  # last\n    ", "  # last\n", ",\n    # end\n    "])
    )
    return f"DataLoader({inner}{comma.join(args)}{end})"


def without(tree: ast.AST, names: set[str]) -> str:
    """Return the tree, without positions and these options of a DataLoader."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "DataLoader":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in names]
    return ast.dump(tree)


@given(calls(), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["utf-8", "utf-8-sig", "latin-1"]), st.booleans())
def test_an_edit_changes_nothing_but_its_options(call: str, end: str, encoding: str, last: bool) -> None:
    head = "# coding: latin-1\n" if encoding == "latin-1" else ""
    text = f"{head}from torch.utils.data import DataLoader\nif x :\n    a = 'ü' ;b = {call} ; c = 1  # end\n\x0c\ny = 2"
    source = (text + "\n" * last).replace("\n", end).encode(encoding)
    line = next(i for i, line in enumerate(text.split("\n"), 1) if "DataLoader(" in line)
    wishes = [(Wish(line, call_edits.DATA_LOADER, options),) for options in (call_edits.workers("6"), call_edits.PIN)]
    after, reasons = rewrite(source, wishes)
    assert reasons == ["", ""]
    was, changed = (item.decode(encoding) for item in (source, after))
    options = {"num_workers": "6", "persistent_workers": "True", "pin_memory": "True"}
    called = (node for node in ast.walk(ast.parse(changed)) if isinstance(node, ast.Call))
    [loader_call] = (node for node in called if ast.unparse(node.func) == "DataLoader")
    assert options.items() <= {keyword.arg: ast.unparse(keyword.value) for keyword in loader_call.keywords}.items()
    assert without(ast.parse(changed), set(options)) == without(ast.parse(was), set(options))
    assert comments(changed) == comments(was)
    assert changed.count("\n") - changed.count(end) == was.count("\n") - was.count(end)
    before, behind = was.partition("DataLoader(")[0], was.rpartition(";")[2]
    assert changed.startswith(before) and changed.endswith(behind)


def comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


# -- uploads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "method", "pinned", "both"),
    [
        ("x = x.to(device)", "to", "x = x.pin_memory().to(device)", "x = x.pin_memory().to(device, non_blocking=True)"),
        ("x = x[0].cuda()", "cuda", "x = x[0].pin_memory().cuda()", "x = x[0].pin_memory().cuda(non_blocking=True)"),
        ("a.copy_(b)", "copy_", "a.copy_(b.pin_memory())", "a.copy_(b.pin_memory(), non_blocking=True)"),
        (
            "a.copy_(b + c)",
            "copy_",
            "a.copy_((b + c).pin_memory())",
            "a.copy_((b + c).pin_memory(), non_blocking=True)",
        ),
        ("x = (\n    y\n    .to(device)\n)", "to", "y.pin_memory()", "y.pin_memory()\n.to(device, non_blocking=True)"),
    ],
)
def test_an_upload_is_pinned_and_does_not_block(
    tmp_path: Path, before: str, method: Literal["to", "cuda", "copy_"], pinned: str, both: str
) -> None:
    program = EditedScript(tmp_path, f"for x in batches:\n{'    '}{before.replace(chr(10), chr(10) + '    ')}\n")
    upload = program.upload(".to(" if method == "to" else before, method)
    assert program.edited(PIN, upload=upload) == (pinned, "")
    assert program.edited(PIN, NON_BLOCKING, upload=upload) == (both, "")
    assert program.edited(NON_BLOCKING, upload=upload) == ("", "")


def test_what_a_loader_pins_only_stops_to_block(tmp_path: Path) -> None:
    program = EditedScript(tmp_path, "for x, y in loader:\n    x, y = x.to(device), y.to(device)\n")
    upload = program.upload(".to(", from_loader=True)
    expected = "x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)"
    assert program.edited(PIN, NON_BLOCKING, upload=upload) == (expected, "")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x, y = x.to(device), y.to('cpu')", "there are several `to(` on that line"),
        ("x = x.to(device, None, False)", "the call's options are passed by position"),
        ("x = x.to(*where)", "the call's options are passed with a star"),
        ("x = move(x)", "there is no `to(` on that line"),
    ],
)
def test_a_copy_that_may_be_another_one_is_left_alone(tmp_path: Path, line: str, reason: str) -> None:
    program = EditedScript(tmp_path, f"for x, y in loader:\n    {line}\n")
    edited, advice = program.edited(NON_BLOCKING, upload=program.upload(line, pinned=True))
    assert not edited and advice.endswith(f" The diff leaves this out because {reason}.")


def test_pinned_memory_does_not_help_a_copy_that_changes_the_type(tmp_path: Path) -> None:
    program = EditedScript(tmp_path, "for x in batches:\n    x = x.to(device, torch.bfloat16)\n")
    line, advice = program.edited(PIN, upload=program.upload(".to("))
    assert not line and "because the copy changes the type, too." in advice


@pytest.mark.parametrize(
    ("source", "edited"),
    [
        ("def move(x, device):\n    return x.to(device)\n", False),
        ("def move(batch, device):\n    return [x.to(device) for x in batch]\n", False),
        ("def move(batch, device):\n    for key in batch:\n        batch[key] = batch[key].to(device)\n", False),
        ("move = lambda x, device: x.to(device)\n", False),
        ("def train(loader, device):\n    for x in loader:\n        x = x.to(device)\n", True),
        ("def move(x):\n    return x.to(DEVICE)\n", True),
    ],
)
def test_a_function_that_moves_anything_anywhere_is_not_edited(tmp_path: Path, source: str, edited: bool) -> None:
    program = EditedScript(tmp_path, source)
    line, advice = program.edited(NON_BLOCKING, upload=program.upload(".to(", pinned=True))
    assert bool(line) is edited
    assert ("the function there may move other things, too" in advice) is not edited


# -- optimizers and modules --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "torch.optim.AdamW(model.parameters(), lr=1e-4)",
            "torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)",
        ),
        ("AdamW(weights, foreach=False)", "AdamW(weights, fused=True)"),
        ("AdamW(weights, foreach=True, lr=1)", "AdamW(weights, lr=1, fused=True)"),
        ("optim.AdamW(p for p in weights)", "optim.AdamW((p for p in weights), fused=True)"),
        ("AdamW(weights, fused=None)", "AdamW(weights, fused=True)"),
    ],
)
def test_an_optimizer_becomes_fused(tmp_path: Path, before: str, after: str) -> None:
    imports = "import torch\nfrom torch import optim\nfrom torch.optim.adamw import AdamW\n"
    program = EditedScript(tmp_path, f"{imports}optimizer = {before}\n")
    assert program.edited(FUSED, optimizer=program.optimizer("optimizer =")) == (f"optimizer = {after}", "")


def test_an_optimizer_of_somebody_else_is_not_edited(tmp_path: Path) -> None:
    program = EditedScript(tmp_path, "from mine import AdamW\noptimizer = AdamW(weights)\n")
    line, advice = program.edited(FUSED, optimizer=program.optimizer("optimizer ="))
    assert not line and "Pass `fused=True` to `AdamW`." in advice


TRAIN = """
    model = Net().to(device)
    criterion = Loss()

    # Train.
    for epoch in range(3):
        for x, y in loader:
            loss = criterion(model(x), y)
    """


def compiled(tmp_path: Path, source: str, text: str = "model(x)", *, of_torch: bool = False) -> tuple[list[str], str]:
    """Return the whole text, and the advice."""
    module = replace(EditedScript(tmp_path, source).module(text), of_torch=of_torch)
    result, files = edits(Facts(cuda=True, cpus=8, modules=(module,)), (COMPILE,), tmp_path)
    source = files[0].after.decode() if files else ""
    compile(source, "train.py", "exec")
    return source.split("\n"), "\n".join(result.advice)


def test_a_module_is_compiled_before_the_loop_that_calls_it(tmp_path: Path) -> None:
    lines, advice = compiled(tmp_path, TRAIN)
    assert not advice
    assert lines[3:7] == ["", 'model.compile(mode="reduce-overhead")', "# Train.", "for epoch in range(3):"]


def test_a_module_of_a_class_of_torchs_has_its_forward_compiled(tmp_path: Path) -> None:
    lines, advice = compiled(tmp_path, "    import torch" + TRAIN, of_torch=True)
    assert not advice
    assert 'model.forward = torch.compile(model.forward, mode="reduce-overhead")' in lines
    _, advice = compiled(tmp_path, TRAIN, of_torch=True)
    assert "`model.compile()` does nothing" in advice


@pytest.mark.parametrize(
    ("source", "before"),
    [
        ("def train(model):\n    while True:\n        model(x)\n", "    while True:"),
        ("for fold in folds:\n    model = Net()\n    for x in loader:\n        model(x)\n", "    for x in loader:"),
        ("model = Net()\ndef step(x):\n    return model(x)\n", "def step(x):"),
        (
            "class Lit:\n    def __init__(self):\n        self.net = Net()\n        self.n = 0\n"
            "    def training_step(self, x):\n        return self.net(x)  # model(x)\n",
            "        self.n = 0",
        ),
    ],
)
def test_a_module_is_compiled_where_its_name_is_bound(tmp_path: Path, source: str, before: str) -> None:
    lines, advice = compiled(tmp_path, source)
    assert not advice
    assert '.compile(mode="reduce-overhead")' in lines[lines.index(before) - 1]


def test_each_module_is_compiled_once_and_functions_are_not(tmp_path: Path) -> None:
    program = EditedScript(
        tmp_path,
        "from torch.nn.functional import relu\ndef noise(x): ...\ncritic: Net = Net()\nmaker = Maker()\n"
        "while True:\n    critic(relu(x))\n    critic(maker(noise(x)))\n",
    )
    modules = program.module("critic(relu"), program.module("critic(maker"), program.module("critic(maker", "Maker")
    _, [file] = edits(Facts(cuda=True, cpus=8, modules=modules), (COMPILE,), tmp_path)
    assert file.after.decode().split("\n")[4:6] == [
        f'{name}.compile(mode="reduce-overhead")' for name in ("critic", "maker")
    ]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def step(model, x):\n    return model(x)\n", "the function there has no loop"),
        ("def step(x):\n    model = Net()\n    return model(x)\n", "the function there has no loop"),
        ("for model in models:\n    model(x)\n", "`model` is bound in the loop"),
        ("for x in xs:\n    first(second(model(x)))\n", "the module's name there is unclear"),
        ("for x in xs:\n    models[0](x)  # model(x)\n", "the module's name there is unclear"),
    ],
)
def test_a_module_that_cannot_be_told_is_left_alone(tmp_path: Path, source: str, reason: str) -> None:
    _, advice = compiled(tmp_path, source)
    assert advice.endswith(
        'Call `model.compile(mode="reduce-overhead")` on the module that is called here, before the first step.'
        f" The diff leaves this out because {reason}."
    )


def test_a_module_is_compiled_without_a_graph(tmp_path: Path) -> None:
    program = EditedScript(tmp_path, "import torch\nfor x in xs:\n    model(x)\n")
    fuse = Setting("graph", "fuse")
    assert program.edited(fuse, module=program.module("model(x)")) == ("model.compile()", "")
    of_torch = replace(program.module("model(x)"), of_torch=True)
    assert program.edited(fuse, module=of_torch) == ("model.forward = torch.compile(model.forward)", "")


# -- the host ----------------------------------------------------------------------------------------


def test_changes_of_the_whole_process_are_described(tmp_path: Path) -> None:
    program = EditedScript(tmp_path, "import torch\n\ntorch.set_num_threads(64)\nmodel(x)\n")
    modules, site = (program.module("model(x)"),), program.site("set_num_threads")
    facts = Facts(cuda=True, cpus=8, modules=modules, threads_site=site)
    result, _ = edits(facts, (Setting("gc"), Setting("threads", "4")), tmp_path)
    assert result.diff == ""
    assert [sentence.partition("train.py")[2] for sentence in result.advice] == [
        ":4: Call `gc.collect()` and `gc.freeze()` once, before the loop.",
        ":3: Call `torch.set_num_threads(4)`, or set the variable `OMP_NUM_THREADS=4`.",
    ]
    result, _ = edits(replace(facts, threads_site=None), (Setting("threads", "4"),), tmp_path)
    assert result.advice == ("Call `torch.set_num_threads(4)`, or set the variable `OMP_NUM_THREADS=4`.",)


# -- libraries ---------------------------------------------------------------------------------------


def test_the_arguments_of_a_trainer_are_edited(tmp_path: Path) -> None:
    program = EditedScript(tmp_path, (PLAIN / "trainer.py").read_text(encoding="utf-8"))
    lines, advice = program.edited(
        WORKERS,
        PIN,
        NON_BLOCKING,
        COMPILE,
        FUSED,
        loader=program.loader(".train()", "transformers"),
        upload=program.upload(".train()", "to", "transformers", from_loader=True),
        module=program.module(".train()", "GPT2LMHeadModel", "transformers"),
        optimizer=program.optimizer(".train()", "AdamW", "transformers"),
    )
    assert not advice
    assert lines.split("\n") == [
        "dataloader_pin_memory=True,",
        "dataloader_num_workers=6,",
        "dataloader_persistent_workers=True,",
        'accelerator_config={"non_blocking": True},',
        "torch_compile=True,",
        'torch_compile_mode="reduce-overhead",',
        'optim="adamw_torch_fused",',
    ]


def test_what_a_library_calls_it_is_reported_where_its_options_are_out_of_sight(tmp_path: Path) -> None:
    program = EditedScript(tmp_path, "from mine import options\ntrainer.train()\nfor batch in prepared:\n    pass\n")
    _, advice = program.edited(WORKERS, loader=program.loader(".train()", "transformers"))
    options = "`dataloader_num_workers=6, dataloader_persistent_workers=True`"
    assert f":2: Pass {options} to `TrainingArguments`. The diff leaves this out because there is no" in advice
    _, advice = program.edited(NON_BLOCKING, upload=program.upload("for batch", "to", "accelerate", pinned=True))
    assert "or `dataloader_config=DataLoaderConfiguration(non_blocking=True)` to `Accelerator`" in advice
    _, advice = program.edited(NON_BLOCKING, upload=program.upload(".train()", "to", "else\x1bwhere", pinned=True))
    assert "else\\x1bwhere does this for the program. Pass `non_blocking=True` to `.to()`." in advice


def test_the_batch_of_a_tokenizer_is_moved_as_a_tensor_is(tmp_path: Path) -> None:
    program = EditedScript(tmp_path, "for batch in loader:\n    batch = batch.to(device)\n")
    line, advice = program.edited(NON_BLOCKING, upload=program.upload(".to(", "to", "transformers", pinned=True))
    assert (line, advice) == ("batch = batch.to(device, non_blocking=True)", "")


def fields(package: str, file: str, owner: str) -> set[str]:
    """Return the annotated names of a class's body, of an installed package that is not imported."""
    spec = find_spec(package)
    assert spec and spec.submodule_search_locations
    tree = ast.parse((Path(spec.submodule_search_locations[0]) / file).read_text(encoding="utf-8"))
    [kind] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner]
    names = {ast.unparse(node.target) for node in kind.body if isinstance(node, ast.AnnAssign)}
    return names | {ast.unparse(node.value) for node in kind.body if isinstance(node, ast.Assign)}


def test_libraries_have_the_options_that_are_named() -> None:
    field_names = fields("transformers", "training_args.py", "TrainingArguments")
    for change in CHANGES:
        options = call_edits.training_arguments("compile" if change == "graph" else "6").get(change)
        assert options is None or {name for name, _ in options.given} <= field_names
    assert "'adamw_torch_fused'" in fields("transformers", "training_args.py", "OptimizerNames")
    assert "non_blocking" in fields("transformers", "trainer_pt_utils.py", "AcceleratorConfig")
    assert "non_blocking" in fields("accelerate", "utils/dataclasses.py", "DataLoaderConfiguration")


# -- files -------------------------------------------------------------------------------------------


def test_all_changes_together_are_one_diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = EditedScript(
        tmp_path,
        "from torch.utils.data import DataLoader\r\n"
        "loader = DataLoader(\r\n\ttexts,  # a lot\r\n\tnum_workers=0\r\n)\r\n"
        "for x in loader:\r\n\tx = x.to(device)  # \x1b[2J\r\n\ttotal += x.mean().item()",
    )
    facts = Facts(
        cuda=True,
        cpus=8,
        loaders=(program.loader("DataLoader(", loop="for x"),),
        uploads=(program.upload(".to(", from_loader=True),),
    )
    result, _ = edits(facts, (WORKERS, PIN, NON_BLOCKING, PREFETCH), tmp_path)
    assert result.diff == dedent("""\
        --- a/train.py
        +++ b/train.py
        @@ -1,8 +1,10 @@
         from torch.utils.data import DataLoader
         loader = DataLoader(
         \ttexts,  # a lot
        -\tnum_workers=0
        +\tnum_workers=6,
        +\tpersistent_workers=True,
        +\tpin_memory=True
         )
         for x in loader:
        -\tx = x.to(device)  # \\x1b[2J
        +\tx = x.to(device, non_blocking=True)  # \\x1b[2J
         \ttotal += x.mean().item()
        \\ No newline at end of file
        """)
    assert result.advice == (
        "train.py:6: Put `ahead(...)`, the function below, around what this loop takes its batches from.",
    )
    assert result.code == AHEAD
    assert [remark.split(",")[0] for remark in result.remarks] == ["With `persistent_workers=True`"]
    compile(AHEAD, "ahead", "exec")
    _, [file] = edits(facts, (WORKERS,), tmp_path)
    assert file.after.count(b"\r\n") == file.after.count(b"\n") == file.before.count(b"\n") + 1


def test_only_the_programs_own_files_are_edited(tmp_path: Path) -> None:
    installed = tmp_path / "venv" / "site-packages"
    for folder in (tmp_path / "here", tmp_path / "there", installed):
        folder.mkdir(parents=True)
    source = "from torch.utils.data import DataLoader\nloader = DataLoader(texts)\n"
    for folder, root, reason in (
        (tmp_path / "there", tmp_path / "here", "the file is outside of the program's directory"),
        (installed, tmp_path, "the file belongs to an installed package"),
        (tmp_path / "here", tmp_path / "here", ""),
    ):
        program = EditedScript(folder, source)
        result, files = edits(Facts(cuda=True, cpus=8, loaders=(program.loader("loader ="),)), (WORKERS,), root)
        assert bool(files) is not bool(reason)
        assert reason in "".join(result.advice)


def test_a_file_that_changed_since_the_program_was_run_is_not_edited(tmp_path: Path) -> None:
    program = EditedScript(tmp_path, "import torch\noptimizer = torch.optim.AdamW(weights)\n")
    written_ns = program.path.stat().st_mtime_ns
    facts = Facts(cuda=True, cpus=8, optimizers=(program.optimizer("optimizer ="),), began_ns=written_ns)
    assert edits(facts, (FUSED,), tmp_path)[1]
    os.utime(program.path, ns=(written_ns + 1, written_ns + 1))
    result, files = edits(facts, (FUSED,), tmp_path)
    assert not files and "because the file has changed since the program was run" in result.advice[0]


@pytest.mark.parametrize(
    ("path", "source", "reason"),
    [
        ("<string>", None, "there is no such file"),
        ("train.py", b"print 'hello'", "the file cannot be parsed"),
        ("train.py", b"\xff\xfe", "the file cannot be parsed"),
        ("train.py", b"x = " + b"(" * 150 + b")" * 150 + b"\nx = " + b"+".join([b"1"] * 400), "nested too deeply"),
        ("train.py", b"#" * 2_000_000, "the file is too large"),
        ("a\0b", None, "the file cannot be read"),
    ],
)
def test_what_is_not_a_file_of_python_gets_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, source: bytes | None, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if source is not None:
        Path(path).write_bytes(source)
    optimizer = Optimizer(site=CodeLine(path, 1), name="SGD", takes_fused=True, fused=False)
    result, files = edits(Facts(cuda=True, cpus=8, optimizers=(optimizer,)), (FUSED,), tmp_path)
    assert not files and reason in result.advice[0]


def test_who_has_no_libcst_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)
    monkeypatch.delitem(sys.modules, "overlapscope.plugins.trials.edit")
    with pytest.raises(MissingPackage, match=r"edited into programs with LibCST\. Install it with `pip install"):
        importlib.import_module("overlapscope.plugins.trials.edit")
