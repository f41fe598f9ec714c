"""Made-up data in the formats that public programs read: noise of the right shape, under the right names."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

WORDS = ["".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=3 + seed % 6)) for seed in range(2000)]


def mnist(folder: Path, train: int = 20_000, test: int = 1_000) -> None:
    """Write the four files of MNIST, unpacked, where torchvision looks for them."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("t10k", test)):
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, count, 28, 28) + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, count) + labels.tobytes())


def images(
    folder: Path, count: int, size: int = 256, width: int = 0, classes: int = 0, name: str = "class{label}_{i}.jpg"
) -> None:
    """Write JPEG files, into a folder for each class if there are classes."""
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (size // 8, (width or size) // 8, 3), dtype=np.uint8)
    pictures = []
    for shift in range(len(noise)):
        picture = Image.fromarray(np.roll(noise, shift, axis=0)).resize((width or size, size), Image.Resampling.BICUBIC)
        picture.save(packed := io.BytesIO(), "jpeg", quality=90)
        pictures.append(packed.getvalue())
    for i in range(count):
        label = i % (classes or 10)
        place = folder / f"class{label}" if classes else folder
        place.mkdir(parents=True, exist_ok=True)
        (place / name.format(label=label, i=i)).write_bytes(pictures[i % len(pictures)])


def text(file: Path, lines: int, words: int = 12, separator: str = " ", last: str = "") -> None:
    """Write lines of made-up words, and a last line."""
    chosen = random.Random(0)
    file.parent.mkdir(parents=True, exist_ok=True)
    text_lines = (separator.join(chosen.choices(WORDS, k=words)) for _ in range(lines))
    file.write_text("\n".join([*text_lines, last]).rstrip() + "\n", encoding="utf-8")


def characters(folder: Path, count: int = 1_000_000, vocabulary: int = 65) -> None:
    """Write nanoGPT's token files and its table of characters."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.random.default_rng(0).integers(0, vocabulary, count, dtype=np.uint16)
    for split in ("train", "val"):
        tokens.tofile(folder / f"{split}.bin")
    itos = dict(enumerate(("\n " + "".join(map(chr, range(33, 127))))[:vocabulary]))
    table = {"vocab_size": vocabulary, "itos": itos, "stoi": {character: i for i, character in itos.items()}}
    (folder / "meta.pkl").write_bytes(pickle.dumps(table))


def nanogpt_checkpoint(file: Path, dataset: str, vocabulary: int = 65) -> None:
    """Write a checkpoint with random weights, made by the program's own model class."""
    import torch

    sys.path.insert(0, str(Path.cwd()))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    sizes = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "bias": False, "vocab_size": vocabulary}
    model = GPT(GPTConfig(**sizes))
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model_args": sizes, "model": model.state_dict(), "config": {"dataset": dataset}}, file)


def gpt_fast_checkpoint(folder: Path, config: str, vocabulary: int) -> None:
    """Write random weights and a tokenizer for gpt-fast, made by the program's own model class."""
    import sentencepiece
    import torch

    sys.path.insert(0, str(Path.cwd()))
    from model import Transformer

    folder.mkdir(parents=True, exist_ok=True)
    model = Transformer.from_name(config).to(torch.bfloat16)
    torch.save(model.state_dict(), folder / "model.pth")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(f"word{number} Hello, my name is" for number in range(vocabulary)),
        model_prefix=str(folder / "tokenizer"),
        model_type="word",
        vocab_size=vocabulary,
        minloglevel=2,
    )


def diffusion_checkpoint(file: Path, **sizes: int) -> None:
    """Write random weights of guided-diffusion's model, made by the program's own functions."""
    import torch

    sys.path.insert(0, str(Path.cwd()))
    from guided_diffusion import script_util  # type: ignore[import-not-found]

    model, _ = script_util.create_model_and_diffusion(**(script_util.model_and_diffusion_defaults() | sizes))
    torch.save(model.state_dict(), file)


def unet_checkpoint(file: Path) -> None:
    """Write random weights of the program's own U-Net."""
    import torch

    sys.path.insert(0, str(Path.cwd()))
    from unet import UNet  # type: ignore[import-not-found]

    torch.save(UNet(n_channels=3, n_classes=2, bilinear=False).state_dict(), file)


def citations(folder: Path, name: str = "cora", nodes: int = 2708, words: int = 1433, edges: int = 5429) -> None:
    """Write the text files of the citation graph Cora."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)
    labels = numbers.integers(0, 7, nodes)
    with (folder / f"{name}.content").open("w") as out:
        for node in range(nodes):
            bits = (numbers.random(words) < 0.013).astype(int)
            out.write("\t".join([str(node), *map(str, bits), f"class{labels[node]}"]) + "\n")
    np.savetxt(folder / f"{name}.cites", numbers.integers(0, nodes, (edges, 2)), fmt="%d", delimiter="\t")


def planetoid(folder: Path, name: str = "cora") -> None:
    """Write the pickled files of the citation graph that PyTorch Geometric's `Planetoid` reads."""
    import scipy.sparse

    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)
    nodes, words, tests = 2708, 1433, 1000

    def features(count: int) -> Any:
        return scipy.sparse.random(count, words, density=0.013, format="csr", dtype=np.float32, random_state=0)

    def labels(count: int) -> Any:
        return np.eye(7, dtype=np.int32)[numbers.integers(0, 7, count)]

    graph = {node: [int(other) for other in numbers.integers(0, nodes, 4)] for node in range(nodes)}
    parts: dict[str, Any] = {"x": features(140), "tx": features(tests), "allx": features(nodes - tests)}
    parts |= {"y": labels(140), "ty": labels(tests), "ally": labels(nodes - tests), "graph": graph}
    for part, value in parts.items():
        (folder / f"ind.{name}.{part}").write_bytes(pickle.dumps(value, protocol=2))
    np.savetxt(folder / f"ind.{name}.test.index", np.arange(nodes - tests, nodes), fmt="%d")


def molecules(folder: Path, name: str = "MUTAG", graphs: int = 3000, nodes: int = 18) -> None:
    """Write the text files of a set of small graphs in the TU format."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)
    first = np.repeat(np.arange(graphs) * nodes, 2 * nodes)
    edges = numbers.integers(1, nodes + 1, (graphs * 2 * nodes, 2)) + first[:, None]
    for part, values in {
        "A": edges,
        "graph_indicator": np.repeat(np.arange(graphs), nodes) + 1,
        "graph_labels": numbers.integers(0, 2, graphs),
        "node_labels": numbers.integers(0, 7, graphs * nodes),
        "edge_labels": numbers.integers(0, 4, len(edges)),
    }.items():
        np.savetxt(folder / f"{name}_{part}.txt", values, fmt="%d", delimiter=", ")


def interactions(file: Path, users: int = 2000, items: int = 1000, each: int = 40) -> None:
    """Write lines of a user and an item, for recommendation."""
    file.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)
    pairs = np.stack([np.repeat(np.arange(users), each), numbers.integers(0, items, users * each)], axis=1) + 1
    np.savetxt(file, pairs, fmt="%d")


def bert_vocabulary(file: Path, corpus: str) -> None:
    """Build the vocabulary of a corpus with the program's own class."""
    sys.path.insert(0, str(Path.cwd()))
    from bert_pytorch.dataset.vocab import WordVocab  # type: ignore[import-not-found]

    with Path(corpus).open() as lines:
        WordVocab(lines).save_vocab(str(file))


def timm_weights(cache: Path, repository: str, model: str) -> None:
    """Write random weights of a timm model where the hub's cache would keep the real ones."""
    import safetensors.torch
    import timm

    weights = timm.create_model(model, pretrained=False)
    place = cache / f"models--{repository.replace('/', '--')}"
    snapshot = place / "snapshots" / "made-up"
    snapshot.mkdir(parents=True, exist_ok=True)
    (place / "refs").mkdir(exist_ok=True)
    (place / "refs" / "main").write_text("made-up")
    safetensors.torch.save_file(weights.state_dict(), snapshot / "model.safetensors")


def language_model(folder: Path, layers: int = 4, hidden: int = 512, vocabulary: int = 4096) -> None:
    """Write a small Llama with random weights and a word tokenizer, as a local model folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _words_tokenizer(["<unk>", "<s>", "</s>", "<pad>"])
    tokenizer.save_pretrained(folder)
    heads = hidden // 64
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def _words_tokenizer(special: list[str]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    unknown, first, last, padding = special
    table = {word: i for i, word in enumerate(dict.fromkeys([*special, *WORDS]))}
    words = Tokenizer(models.WordLevel(table, unk_token=unknown))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(first, table[first]), (last, table[last])],
    )
    fast: Callable[..., Any] = PreTrainedTokenizerFast
    return fast(tokenizer_object=words, unk_token=unknown, bos_token=first, eos_token=last, pad_token=padding)


def instructions(file: Path, count: int) -> None:
    """Write instructions and answers, in the layout of Alpaca, and as prompts and completions."""
    chosen = random.Random(0)
    file.parent.mkdir(parents=True, exist_ok=True)

    def sentence(words: int) -> str:
        return " ".join(chosen.choices(WORDS, k=words))

    names = ("instruction", "input", "output") if "alpaca" in file.name else ("prompt", "completion")
    file.write_text("".join(json.dumps({name: sentence(40) for name in names}) + "\n" for _ in range(count)))


def empty_folder(folder: Path) -> None:
    """Make a folder that a program expects."""
    folder.mkdir(parents=True, exist_ok=True)


def distribution(folder: Path, name: str, version: str) -> None:
    """Write the metadata of an installed package, which a checkout lacks and the program asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


def make(wanted: Mapping[str, Any], folder: Path) -> None:
    """Make one item of a program's data in its working folder, unless it exists already."""
    options = dict(wanted)
    maker: Callable[..., None] = globals()[options.pop("make")]
    at = (folder / options.pop("at")).resolve()
    mark = at.with_name(at.name + ".made")
    if mark.exists():
        return
    before = Path.cwd()
    os.chdir(folder)
    try:
        maker(at, **options)
    finally:
        os.chdir(before)
    mark.touch()
