"""The tiny model's tokenizer: byte-level BPE learned from its own sentences, with Qwen's special tokens after it.

Writes files that `Qwen2TokenizerFast` reads; an embedding of Qwen's 151,936 rows would be the largest part.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from backend.checkpoints.tokenizer import SPECIAL_TOKENS, tokenizer_config
from bench.nano import grammar, world

WORDS = 1200  # learned tokens, the 256 bytes among them
_SEED = 7
# The words of other prompts, so that they do not fall apart into letters: seen once, kept by the trainer's counts.
_COMMON = """
the a an and of in on at to from with into over under by for as is are it its this that then while camera shot scene
light dark bright slow slowly fast quickly moves move moving motion close wide background foreground frame video sound
music audio voice person man woman child street city night day sky cloud water sea tree mountain field grass flower
fire smoke glass table room window door wall house car train picture subject first second one two three four five
"""


@cache
def _learned() -> tuple[dict[str, int], list[str]]:
    """The vocabulary without special tokens, and the merges; the same on every run."""
    rng = random.Random(_SEED)
    lines = [grammar.describe(world.sample(rng), rng, test=index % 5 == 0) for index in range(4000)]
    lines += [grammar.sounds_like(grammar.imitate(world.sample(rng), rng, "<Picture 1>"), rng) for _ in range(400)]
    lines += ["<Picture 1>: <Picture 2>: <Audio 1>: <Video 1>: <0.2 seconds>"] * 400 + [
        f" {word}" for word in _COMMON.split()
    ] * 8
    tokenizer = Tokenizer(models.BPE())
    # Qwen's own split (transformers, tokenization_qwen2.py), so that merges never cross what it separates.
    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    return model["vocab"], merges


def special_tokens() -> dict[str, int]:
    """Qwen's special tokens and their ids here: they follow the learned ones."""
    first = len(_learned()[0])
    return {token: first + index for index, token in enumerate(SPECIAL_TOKENS)}


def size() -> int:
    """Rows of the embedding: all ids, rounded up to a multiple of 32."""
    return -(-(len(_learned()[0]) + len(SPECIAL_TOKENS)) // 32) * 32


def write(folder: Path) -> None:
    """Write `vocab.json`, `merges.txt` and `tokenizer_config.json` into `folder`. Every UTF-8 text encodes."""
    vocabulary, merges = _learned()
    special = special_tokens()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary | special, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(special), indent=2), encoding="utf-8")
