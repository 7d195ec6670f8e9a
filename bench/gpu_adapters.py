"""GPU check of adapters: a LoRA over every layer merged, taken out again, and the seconds of both.

Run by `gpu_checks`.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from bench import report
from bench.gpu_bench import Bench, Figures, open_pipeline, render, require

RANK = 64  # of the published turbo adapters


def adapters(bench: Bench) -> Figures:
    """The second transformer of the two runs is the first one again, to the bit; the adapted one differs."""
    from backend.types import Adapter, Task

    runtime, pipeline = open_pipeline(bench, [])
    shape = bench.shape()
    pipeline.use(Task.T2VA)
    path = bench.work / "adapter.safetensors"
    save_file(_lora(pipeline.components.transformer, bench), path)
    before, _ = render(pipeline, shape)
    weights = sum(each.nbytes for each in pipeline.components.transformer.transformer_blocks.parameters())
    bench.empty()
    used = bench.allocated()
    merge_s = _seconds(bench, lambda: runtime.adapt((Adapter(path=path),)))
    again_s = _seconds(bench, lambda: runtime.adapt((Adapter(path=path, scale=0.5),)))
    adapted, _ = render(pipeline, shape, adapters=(Adapter(path=path),))
    source = runtime.table_source
    remove_s = _seconds(bench, lambda: runtime.adapt(()))
    after, _ = render(pipeline, shape)
    figures: Figures = {
        "blocks_gb": round(weights / 1e9, 2),
        "adapter_gb": round(path.stat().st_size / 1e9, 3),
        "merge_s": merge_s,
        "other_scale_s": again_s,
        "remove_s": remove_s,
        "tables": source,
        "grown_mib": round((bench.allocated() - used) / 2**20, 1),
        "changed": report.difference(before.latents, adapted.latents)["relative"],
        "restored": torch.equal(before.latents, after.latents),
    }
    require(figures["restored"], "without the adapter the result is not what it was before")
    require(figures["changed"] > 1e-3, "the adapter changes nothing")
    require(figures["grown_mib"] < 64, f"{figures['grown_mib']} MiB stayed allocated")
    return figures


def _seconds(bench: Bench, work: Any) -> float:
    started = time.perf_counter()
    work()
    if bench.cuda:
        torch.cuda.synchronize()
    return round(time.perf_counter() - started, 2)


def _lora(model: nn.Module, bench: Bench) -> dict[str, torch.Tensor]:
    """Matrices for every layer of the trunk, AdaLN projections included (by their sizes: they may be unread)."""
    rank = 4 if bench.tiny else RANK
    generator = torch.Generator(bench.device).manual_seed(5)
    tensors = {}
    for name, module in model.named_modules():
        if name.startswith("transformer_blocks.") and isinstance(module, nn.Linear):
            outputs, inputs = module.weight.shape
            for part, size in (("A", (rank, inputs)), ("B", (outputs, rank))):
                drawn = torch.randn(size, generator=generator, device=bench.device) * 0.02
                tensors[f"transformer.{name}.lora_{part}.weight"] = drawn.to(torch.bfloat16).cpu()
    return tensors
