"""One forward and one decode over the GPUs of one host: ours in every form, one rank, and diffusers' own parallelism.

Spawns its ranks itself, one a GPU. All forms run in one go on the same weights and inputs; rank 0 reports.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from backend.h3 import decode
from backend.presets import Parallel, RuntimeOptions
from backend.runtime.attention import choose
from backend.runtime.kernels import choose_kernels, triton_or_reason
from backend.runtime.parallel.group import form
from backend.runtime.parallel.ranks import OneRank, SharedTrunk
from backend.runtime.parallel.vae import TileShare
from backend.runtime.transformer import FastTransformer
from backend.runtime.vae_tiles import TileDecoder, speed_up
from bench import models, report, step

FORMS = ("one", "ulysses", "gather", "fsdp", "tensor")
COLUMNS = ["shape", "rows", "what", "kernel", "median_s", "speedup", "peak_gib", "max", "mean", "relative"]
TIMEOUT = datetime.timedelta(minutes=5)
DECODED = {False: models.FULL_SHAPES[1], True: models.TINY_SHAPES[0]}  # by whether models are tiny


def main() -> None:
    """Spawn the ranks and wait for them; rank 0 prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.parallel", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="tiny models and shapes on the CPU, over gloo")
    parser.add_argument("--ranks", type=int, default=0, help="default: every GPU, or 2 on a CPU")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--forms", default=",".join(FORMS), help="of ours, comma-separated")
    parser.add_argument("--shapes", default="", help="only these, comma-separated, as 1344x768x209")
    parser.add_argument("--no-stock", action="store_true", help="leave diffusers out; nothing is compared then")
    parser.add_argument("--no-decode", action="store_true", help="leave the VAE out")
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON; default bench/results")
    options = parser.parse_args()
    cuda = torch.cuda.is_available() and not options.tiny
    size = options.ranks or (torch.cuda.device_count() if cuda else 2)
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # NVLink multicast stays off: it can put a shared host's GPUs out of service
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [context.Process(target=_rank, args=(rank, size, store, cuda, options)) for rank in range(size)]
        for each in ranks:
            each.start()
        while any(each.is_alive() for each in ranks):
            if any(each.exitcode for each in ranks):  # one failed: the others would wait for it in a collective
                for each in ranks:
                    each.kill()
            time.sleep(0.2)
    raise SystemExit(max(abs(each.exitcode or 0) for each in ranks))


def _rank(rank: int, size: int, store: str, cuda: bool, options: argparse.Namespace) -> None:
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=TIMEOUT)
    bench = _Bench(rank, size, device, options)
    with torch.no_grad():
        if not options.no_stock:
            bench.stock()
        for name in options.forms.split(","):
            bench.ours(name)
        if not options.no_decode:
            bench.tiles()
    if rank == 0:
        content = bench.content()
        print(report.table(content["rows"], COLUMNS))
        name = "parallel-tiny" if options.tiny else f"parallel-{size}"
        print("written:", report.write(name, content, options.out), flush=True)
    dist.barrier()
    dist.destroy_process_group()


class _Bench:
    """The measurements of one rank. Every rank makes the same calls in the same order."""

    def __init__(self, rank: int, size: int, device: torch.device, options: argparse.Namespace) -> None:
        self.rank, self.size, self.device, self.options = rank, size, device, options
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.plan = step.schedule()
        self.shapes = models.TINY_SHAPES if options.tiny else models.FULL_SHAPES[:2]
        if options.shapes:
            self.shapes = tuple(shape for shape in self.shapes if shape.name in options.shapes.split(","))
        self.rows: list[dict[str, Any]] = []
        self.notices: list[str] = []
        self.expected: dict[str, Tensor] = {}

    def content(self) -> dict[str, Any]:
        """Everything that is kept; `speedup` is against one rank of ours."""
        for row in self.rows:
            one = "decode, one rank" if row["what"].startswith("decode") else "ours, one"
            alone = [each["median_s"] for each in self.rows if each["what"] == one and each["shape"] == row["shape"]]
            row["speedup"] = round(alone[0] / row["median_s"], 3) if alone else None
        return {
            "what": f"one forward of the transformer and one decode over {self.size} ranks, random weights, one run",
            "environment": report.environment(self.device) | {"ranks": self.size, "nvlink_multicast": "off"},
            "dtype": str(self.dtype),
            "notices": self.notices,
            "rows": self.rows,
        }

    def stock(self) -> None:
        """diffusers as it comes: one rank, then its context parallelism over all."""
        model = models.transformer(self.device, self.dtype, self.options.tiny)
        for shape in self.shapes:
            self._forward(model, shape, dict(model.config), ("stock diffusers, one rank", "torch's default"))
        if self.device.type != "cuda":
            self._say("stock context parallelism is not measured: its enable_parallelism divides by zero on a CPU")
            return
        from diffusers import ContextParallelConfig

        # Plain where the rows divide; the mode for any length exchanges sizes through the host.
        counts = [sum(case_rows(shape)) for shape in self.shapes]
        anything = any(count % self.size for count in counts)
        model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=self.size, ulysses_anything=anything))
        for shape in self.shapes:
            kernel = "torch's default" + (", any length" if anything else "")
            label = (f"stock diffusers, context parallel {self.size}", kernel)
            self._forward(model, shape, dict(model.config), label, self.options.repeats)

    def ours(self, name: str) -> None:
        """One form of ours, on fresh weights with the tables of the schedule in place of the projections."""
        _free()
        whole = {"ulysses_degree": self.size}
        parallel, gather = {
            "one": ({}, False),
            "ulysses": (whole, False),
            "gather": (whole, True),
            "fsdp": (whole | {"fsdp": True}, False),
            "tensor": ({"tensor_parallel_size": self.size}, False),
        }[name]
        ranks = OneRank()
        if name != "one":
            ranks = SharedTrunk(form(self.rank, self.size, Parallel(**parallel)), gather_rows=gather)
        model: Any = models.transformer(self.device, self.dtype, self.options.tiny)
        config = dict(model.config)
        kernels = choose_kernels(
            self.device, self.dtype, RuntimeOptions(), self._say, head_dim=config["attention_head_dim"]
        )
        fast = FastTransformer(model, kernels, self._say, ranks=ranks)
        step.tables(model, fast, self.plan, self.device)
        _free()
        for shape in self.shapes:
            label = (
                f"ours, {name}" + ("" if name == "one" else f" {self.size}"),
                f"{kernels.attention.name}, {kernels.name}",
            )
            self._forward(fast, shape, config, label, self.options.repeats)

    def tiles(self) -> None:
        """A whole decode with the tiles on one rank, then over all."""
        _free()
        shape = DECODED[self.options.tiny]
        vae: Any = models.vae(self.device, self.dtype, self.options.tiny)
        ops, _ = triton_or_reason(self.device, self.dtype)
        if ops is not None:
            speed_up(vae, choose(self.device, self.dtype, "auto", vae.config.decoder_attention_head_dim), ops)
        latents = models.latents(shape, self.device)
        group = form(self.rank, self.size, Parallel(ulysses_degree=self.size)).world
        shared = TileDecoder(0, self._say, TileShare(group))
        alone = TileDecoder(0, self._say)
        expected = None
        for label, tiles in (("decode, one rank", alone), (f"decode, tiles over {self.size}", shared)):
            row = report.timed(
                lambda tiles=tiles: list(self._decoded(vae, latents, tiles, tiles is shared)),
                self.device,
                repeats=self.options.repeats,
            )
            frames = row.pop("result")
            row |= {
                "shape": shape.name,
                "rows": None,
                "what": label,
                "kernel": "triton" if ops is not None else "eager",
            }
            self._all_peaks(row)
            if self.rank == 0:
                video = torch.cat(frames)
                expected = video if expected is None else expected
                row |= report.difference(expected, video)
                self._row(row)

    def _decoded(self, vae: nn.Module, latents: Tensor, tiles: TileDecoder, together: bool) -> Iterator[Tensor]:
        if self.rank == 0:
            yield from decode.video_chunks(vae, latents, tiles.decode_clip)
        elif together:
            for clip in decode.clips(vae, latents):
                tiles.help_clips(vae, [clip])

    def _forward(
        self,
        call: Callable[..., tuple[Tensor, Tensor]],
        shape: models.Shape,
        config: dict[str, Any],
        label: tuple[str, str],
        repeats: int = 1,
    ) -> None:
        case = models.sequence(
            shape, self.device, self.dtype, text_dim=config["text_dim"], times=tuple(self.plan[step.AT].tolist())
        )
        if isinstance(call, FastTransformer):
            call.begin([case["timestep"]])
        dist.barrier()
        row = report.timed(lambda: call(**case, return_dict=False), self.device, warm=1, repeats=repeats)
        video = row.pop("result")[0].cpu()
        self._all_peaks(row)
        count = case["token_tags"].shape[0]
        row |= {"shape": shape.name, "rows": count, "what": label[0], "kernel": label[1]}
        self.expected.setdefault(shape.name, video)
        row |= report.difference(self.expected[shape.name], video)
        self._row(row)

    def _all_peaks(self, row: dict[str, Any]) -> None:
        """The largest peak of all ranks into `row`, and each one's."""
        peaks: list[Any] = [None] * self.size
        dist.all_gather_object(peaks, row["peak_gib"])
        if peaks[0] is not None:
            row |= {"peak_gib": max(peaks), "peaks_gib": peaks}

    def _row(self, row: dict[str, Any]) -> None:
        if self.rank == 0:
            self.rows.append(row)
            print({name: row.get(name) for name in COLUMNS}, flush=True)

    def _say(self, message: str) -> None:
        if message not in self.notices:
            self.notices.append(message)


def case_rows(shape: models.Shape) -> tuple[int, int, int]:
    """Text, audio and video rows of a case."""
    return min(models.TEXT_ROWS, shape.video_rows), shape.audio_rows, shape.video_rows


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
