"""What both roles know: a tiny model with its own words, the prompts, and the reward."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

COLORS = ("red", "green", "blue", "black")
WORDS = ("<pad>", "<end>", "say", *COLORS, "one", "two", "three", "four", "five")
COMPLETIONS = 8
"""Completions of a prompt: the group of GRPO."""

LENGTH = 8
"""Tokens of a completion."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of twelve words."""
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", padding_side="left"
    )


def model(seed: int) -> GPT2LMHeadModel:
    """Return a GPT-2 of two layers."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(WORDS),
        n_positions=32,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return GPT2LMHeadModel(config)


def prompt(position: int) -> str:
    """Return the prompt of a position: ``say red``."""
    return f"say {COLORS[position % len(COLORS)]}"


def reward(asked: str, completion: str) -> float:
    """Return the share of a completion's words that are the color asked for."""
    return completion.split().count(asked.split()[1]) / LENGTH
