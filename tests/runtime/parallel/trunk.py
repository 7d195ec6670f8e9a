"""What the ranks compute in the tests of the trunk: two forwards of a small transformer, by any form."""

import torch
from diffusers import MiniMaxH3Transformer3DModel

from backend.presets import Exchange, Parallel
from backend.runtime import adaln_tables
from backend.runtime.attention import choose
from backend.runtime.block import Kernels, compile_block
from backend.runtime.ops import TorchOps
from backend.runtime.parallel.group import form
from backend.runtime.parallel.ranks import OneRank, SharedTrunk, settled
from backend.runtime.transformer import FastTransformer
from bench.models import TINY_TRANSFORMER, on_meta, random_weights

CPU = torch.device("cpu")
EIGHT_HEADS = {
    **TINY_TRANSFORMER,
    "num_attention_heads": 8,
    "attention_head_dim": 16,
    "rope_freq_dim": 2,
    "ffn_dim": 128,
}
FIFTY_SIX_HEADS = {**EIGHT_HEADS, "num_attention_heads": 56, "hidden_size": 112, "ffn_dim": 224}

SEVEN_HEADS = {**EIGHT_HEADS, "num_attention_heads": 7}


def small_model(config):
    return random_weights(on_meta(MiniMaxH3Transformer3DModel, **config), CPU, torch.float32)


def cases(config, text, audio, video, shuffled):
    """Two steps over `text + audio + video` rows, nine of them conditions; `shuffled`: rows of all kinds mixed."""
    generator = torch.Generator().manual_seed(text)
    count = text + audio + video
    order = torch.randperm(count, generator=generator) if shuffled else torch.arange(count)
    places = dict(zip(("text", "audio", "video"), order.split((text, audio, video)), strict=True))
    tags = torch.empty(count, dtype=torch.int64)
    for tag, name in enumerate(("video", "text", "audio")):
        tags[places[name]] = tag
    shared = {f"{name}_indices": at for name, at in places.items()} | {
        "encoder_hidden_states": torch.randn(1, text, config["text_dim"], generator=generator),
        "token_tags": tags,
        "position_ids": torch.randint(0, 40, (count, 3), generator=generator),
    }
    made = []
    for t_video, t_audio in ((0.25, 0.5), (0.375, 0.625)):
        times = torch.full((count,), t_video)
        times[places["audio"]] = t_audio
        times[places["video"][: min(9, video // 2)]] = 0.999
        timestep, indices = torch.unique(times, sorted=True, return_inverse=True)
        drawn = {
            "hidden_states": torch.randn(1, video, 96, generator=generator),
            "audio_hidden_states": torch.randn(1, audio, 32, generator=generator),
        }
        made.append(shared | drawn | {"timestep": timestep, "timestep_indices": indices})
    return made


def cut_model(config):
    """All trunk parameters of a small model, by name."""
    model = small_model(config)
    return {name: each.data for name, each in model.named_parameters() if name.startswith("transformer_blocks.")}


@torch.no_grad()
def trunk(rank, size, parallel, config, options):
    """Outputs (video, audio) of both steps, in order, as numpy."""
    model = small_model(config)
    ranks, notices, done_without = OneRank(), [], []
    if size > 1:
        groups = form(rank, size, Parallel(**parallel))
        wanted = Exchange(options.get("exchange", "packed"))
        ranks = SharedTrunk(groups, settled(wanted, groups.ulysses, CPU, done_without.append), done_without.append)
    kernels = Kernels(
        choose(CPU, torch.float32, options.get("attention", "sdpa"), config["attention_head_dim"]),
        TorchOps(),
        compile_block() if options.get("compiled") else None,
    )
    fast = FastTransformer(model, kernels, notices.append, fused=options.get("fused", True), ranks=ranks)
    steps = cases(config, *options.get("rows", (12, 74, 63)), options.get("shuffled", False))
    if options.get("tables"):
        key = adaln_tables.TableKey.of([case["timestep"] for case in steps], "random")
        tables = adaln_tables.build(adaln_tables.ModelProjections(model), [case["timestep"] for case in steps], key)
        installation = adaln_tables.Installation(model, tables)
        installation.release()
        fast.install(installation)
    fast.begin([case["timestep"] for case in steps])
    results = []
    for case in steps:
        video, audio = fast(**case, return_dict=False)
        results += [video.numpy(), audio.numpy()]
    assert not notices, notices
    assert len(done_without) == options.get("done_without", 0), done_without
    held = sum(
        each.numel() for name, each in model.transformer_blocks.named_parameters() if "attn.to" in name or "ff" in name
    )
    return results, held
