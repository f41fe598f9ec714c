"""Texts that a DataLoader has to cut into tokens."""

from __future__ import annotations

import random
import re

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

from tests.programs.trials.options import TrialScriptOptions


class Texts(Dataset[torch.Tensor]):
    """Made of random words, each of which is a token."""

    def __init__(self, texts: int, words: int, vocabulary: int) -> None:
        self.texts, self.words, self.vocabulary = texts, words, vocabulary
        self.dictionary = ["".join(random.Random(number).choices("etaoinshrdlu", k=6)) for number in range(4096)]

    def __len__(self) -> int:
        return self.texts

    def __getitem__(self, index: int) -> torch.Tensor:
        text = " ".join(random.Random(index).choices(self.dictionary, k=self.words))
        return torch.tensor([self._token(word) for word in re.findall(r"\w+|[^\w\s]", text)])

    def _token(self, word: str) -> int:
        return int.from_bytes(word.encode(), "big") % self.vocabulary


class Labelled(Texts):
    """With the names that transformers wants."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:  # type: ignore[override]
        tokens = super().__getitem__(index)
        return {"input_ids": tokens, "labels": tokens}


def gpt2(o: TrialScriptOptions, *, words: int, vocabulary: int) -> nn.Module:
    """Return a small GPT-2 without dropout."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=words,
            n_embd=o.size(768, 16),
            n_layer=o.size(6, 1),
            n_head=o.size(12, 2),
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
