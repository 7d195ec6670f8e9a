"""The tiny checkpoint's tokenizer: byte-level BPE with a few common words, and Qwen's special tokens at Qwen's ids.

Writes files that `Qwen2TokenizerFast` reads; knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

# Ids of the released tokenizer (tokenizer/tokenizer_config.json), which text_encoder/config.json refers to.
SPECIAL_TOKENS = {
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<|object_ref_start|>": 151646,
    "<|object_ref_end|>": 151647,
    "<|box_start|>": 151648,
    "<|box_end|>": 151649,
    "<|quad_start|>": 151650,
    "<|quad_end|>": 151651,
    "<|vision_start|>": 151652,
    "<|vision_end|>": 151653,
    "<|vision_pad|>": 151654,
    "<|image_pad|>": 151655,
    "<|video_pad|>": 151656,
}
VOCAB_SIZE = 151936  # text_encoder/config.json: the released tokenizer fits the tiny text encoder too

# Words that prompts are made of, so that a long prompt does not become one row a byte.
_WORDS = """
the a an and of in on at to from with into over under by for as is are it its his her their this that then while
camera shot scene light lighting soft warm cold dark bright slow slowly moves move moving motion close closeup wide
medium static background foreground frame video sound music audio voice speaks says woman man person people child
girl boy face eyes hair hand hands wearing walks walking stands standing sits sitting looks looking turns smiles
street city night day morning evening sunset sky cloud clouds rain snow wind water river sea ocean wave waves forest
tree trees mountain field grass flower flowers fire smoke dust glass table room window door wall house car train
red blue green yellow white black golden silver color colors style cinematic realistic detailed high low left right
up down between through around across behind before after first second one two three picture subject ambient quiet
"""
_ENDINGS = (("i", "n"), ("in", "g"), ("e", "r"), ("e", "d"), ("e", "s"), ("t", "h"), ("th", "e"), ("o", "n"))


def write_tokenizer(folder: Path) -> None:
    """Write `vocab.json`, `merges.txt` and `tokenizer_config.json` into `folder`. Every UTF-8 text encodes."""
    alphabet = _byte_alphabet()
    merges = _merges(alphabet)
    tokens = list(dict.fromkeys([*alphabet, *(left + right for left, right in merges)]))
    vocabulary = {token: index for index, token in enumerate(tokens)} | SPECIAL_TOKENS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(tokenizer_config(SPECIAL_TOKENS), indent=2), encoding="utf-8"
    )


def _byte_alphabet() -> list[str]:
    """One printable character for each byte 0 to 255, as every byte-level BPE since GPT-2 names them."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _merges(alphabet: list[str]) -> list[tuple[str, str]]:
    """Left-to-right merges that join each word (with its leading space) into one token, then common endings."""
    space = alphabet[ord(" ")]
    found: dict[tuple[str, str], None] = {}
    for word in _WORDS.split():
        prefixes = [space + word[:length] for length in range(len(word) + 1)]
        for prefix, longer in pairwise(prefixes):
            found[prefix, longer[-1]] = None
    return [*found, *_ENDINGS]


def tokenizer_config(special: Mapping[str, int]) -> dict[str, object]:
    """What `tokenizer_config.json` says, with `special` tokens by their ids; the first of them pads."""
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(index): {"content": token, **flags} for token, index in special.items()},
        "additional_special_tokens": list(special)[1:],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "unk_token": None,
    }
