"""Steps, encoding and decoding over the GPUs of one host: ours in every form, one rank, and diffusers' own parallelism.

Spawns its ranks itself, one a GPU. Parts run in order of their worth until the time is used up, in one go on the same
weights and inputs; rank 0 writes what there is after each.
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

from backend.errors import Unavailable
from backend.h3 import decode
from backend.presets import Exchange, Parallel, RuntimeOptions
from backend.runtime.attention import choose
from backend.runtime.kernels import choose_kernels, triton_or_reason
from backend.runtime.parallel import conditioner, mapped, overlap
from backend.runtime.parallel.group import form
from backend.runtime.parallel.ranks import OneRank, SharedTrunk, settled
from backend.runtime.parallel.vae import TileShare
from backend.runtime.transformer import FastTransformer
from backend.runtime.vae_tiles import TileDecoder, speed_up
from backend.worker.main import die_with_parent
from bench import models, report, step

# In order of worth, with the seconds a part may take at full size on two H200s: none is begun that would not fit.
PARTS = {
    "one": 75,
    "packed": 35,
    "overlapped": 35,
    "gathered": 35,
    "stock": 65,
    "decode": 45,
    "encode": 25,
    "mapped": 45,
    "travel": 10,
    "fsdp": 50,
    "tensor": 50,
    "single": 20,
}
EXCHANGES = tuple(each for each in Exchange if each is not Exchange.AUTO)
WHOLE = ("one", "single", *(each.value for each in EXCHANGES))  # forms that run on the same, undivided weights
COLUMNS = ["shape", "what", "kernel", "median_s", "speedup", "peak_gib", "max", "mean", "relative"]
TIMEOUT = datetime.timedelta(seconds=120)
DECODED = {False: models.FULL_SHAPES[0], True: models.TINY_SHAPES[0]}  # by whether models are tiny
FORWARDS = 49  # of 50 sigma points
REFERENCE = "ours, one"


def main() -> None:
    """Spawn the ranks and wait for them; rank 0 prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.parallel", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="tiny models and shapes on the CPU, over gloo")
    parser.add_argument("--ranks", type=int, default=0, help="default: every GPU, or 2 on a CPU")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated; run in this order")
    parser.add_argument("--shapes", default="", help="only these, comma-separated, as 1344x768x209")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no part that would end later than this")
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON; default bench/results")
    options = parser.parse_args()
    options.began = time.time()
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: there is no {', '.join(sorted(unknown))}; choose of {', '.join(PARTS)}")
    cuda = torch.cuda.is_available() and not options.tiny
    size = options.ranks or (torch.cuda.device_count() if cuda else 2)
    # NVLink multicast stays off: it can put a shared host's GPUs out of service.
    os.environ["NCCL_NVLS_ENABLE"], os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "0", "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        options.parent = os.getpid()
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
    die_with_parent(options.parent)  # a bench that is cut short leaves the GPUs free
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=TIMEOUT)
    bench = _Bench(rank, size, device, options)
    with torch.no_grad():
        for name in options.parts.split(","):
            bench.part(name)
    if rank == 0:
        content = bench.content()
        print(report.table(content["rows"], COLUMNS))
        print(content["estimate"], *content["notices"], sep="\n", flush=True)
    dist.barrier()
    dist.destroy_process_group()


class _Bench:
    """The measurements of one rank. Every rank makes the same calls in the same order."""

    def __init__(self, rank: int, size: int, device: torch.device, options: argparse.Namespace) -> None:
        self.rank, self.size, self.device, self.options = rank, size, device, options
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.plan = step.schedule()
        # The shorter first, which compiles what both need.
        self.shapes = models.TINY_SHAPES if options.tiny else models.FULL_SHAPES[1::-1]
        if options.shapes:
            self.shapes = tuple(shape for shape in self.shapes if shape.name in options.shapes.split(","))
        self.rows: list[dict[str, Any]] = []
        self.notices: list[str] = []
        self.results: dict[tuple[str, str], Tensor] = {}
        self.whole: FastTransformer | None = None  # over undivided weights, for all forms that keep them so

    def part(self, name: str) -> None:
        """Measure one part unless the time is too short for it; what fails on every rank alike is noted, not raised."""
        spent = [time.time() - self.options.began]
        dist.broadcast_object_list(spent, src=0)
        needs = PARTS[name] if self.device.type == "cuda" else 0
        if spent[0] + needs > self.options.seconds:
            self._say(f"{name}: left out, {spent[0]:.0f} s were spent and it may take {needs} s")
            return
        if name not in WHOLE:
            self.whole = None
        _free()
        try:
            own = {"stock": self.stock, "decode": self.tiles, "encode": self.encode, "travel": self.travel}
            own.get(name, lambda: self.ours(name))()
        except (RuntimeError, ValueError, Unavailable) as error:
            # Peers that did not fail wait in a collective until it times out, and then end this program.
            self._say(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[:1]}")
        if self.rank == 0:
            kind = "tiny" if self.options.tiny else str(self.size)
            report.write(f"parallel-{kind}", self.content(), self.options.out)
            print(f"{name}: done {time.time() - self.options.began:.0f} s after the start", flush=True)

    def content(self) -> dict[str, Any]:
        """Everything that is kept; `speedup` is against one rank of ours, and so are differences."""
        for row in (each for each in self.rows if "sent_gb_s" not in each):
            first = {"decode": "decode, one rank", "encode": "encode, one rank"}.get(row["what"][:6], REFERENCE)
            alone = self._seconds(first, row["shape"])
            row["speedup"] = round(alone / row["median_s"], 3) if alone else None
            expected, got = (self.results.get((what, row["shape"])) for what in (first, row["what"]))
            if expected is not None and got is not None and "max" not in row:
                row |= report.difference(expected, got)
        return {
            "what": f"forwards, encoding and decoding over {self.size} ranks, random weights, one run",
            "environment": report.environment(self.device) | {"ranks": self.size, "nvlink_multicast": "off"},
            "dtype": str(self.dtype),
            "note": f"'{REFERENCE}' runs on every GPU at the same time, and differences are to it. "
            "Mapped exchanges hold 16 * rows * heads * head_dim / ranks bytes beside the peak.",
            "estimate": self._estimate(),
            "notices": self.notices,
            "rows": self.rows,
        }

    def stock(self) -> None:
        """diffusers as it comes: one rank once on the shorter shape, then its context parallelism over all."""
        model = models.transformer(self.device, self.dtype, self.options.tiny)
        self._forward(model, self.shapes[0], dict(model.config), ("stock diffusers, one rank", "torch's default"), 1)
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
        """One form of ours, with the tables of the schedule in place of the projections.

        "one" runs on all GPUs at the same time, as two jobs at once would; "single" on one while the others rest.
        """
        if name in WHOLE:
            parallel: dict[str, Any] = {"ulysses_degree": self.size}
        elif name == "fsdp":
            parallel = {"ulysses_degree": self.size, "fsdp": True}
        else:
            parallel = {"tensor_parallel_size": self.size}
        ranks = OneRank()
        if name not in ("one", "single"):
            groups = form(self.rank, self.size, Parallel(**parallel))
            exchange = Exchange(name) if name in WHOLE else Parallel(**parallel).wanted_exchange
            exchange = settled(exchange, groups.ulysses, self.device, self._say)
            ranks = SharedTrunk(groups, exchange, self._say)
        known = self.whole
        model: Any = models.transformer(self.device, self.dtype, self.options.tiny) if known is None else known.model
        config = dict(model.config)
        kernels = choose_kernels(
            self.device, self.dtype, RuntimeOptions(), self._say, head_dim=config["attention_head_dim"]
        )
        fast = FastTransformer(model, kernels, self._say, ranks=ranks)
        if known is None:
            step.tables(model, fast, self.plan, self.device)
        else:
            fast.install(known._tables)
        self.whole = fast if name in WHOLE else None
        _free()
        label = (f"ours, {name}", f"{kernels.attention.name}, {kernels.name}")
        for shape in self.shapes[: 1 if name == "single" else None]:
            if name != "single" or self.rank == 0:
                self._forward(fast, shape, config, label, self.options.repeats, together=name != "single")
        fast.forget()
        dist.barrier()

    def tiles(self) -> None:
        """A whole decode with the tiles on one rank, then over all."""
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
                repeats=1 if tiles is alone else self.options.repeats,
            )
            frames = row.pop("result")
            if self.rank == 0:
                video = torch.cat(frames)
                expected = video if expected is None else expected
                row |= report.difference(expected, video)
            self._row(row, shape.name, (label, "triton" if ops is not None else "eager"))

    def encode(self) -> None:
        """A prompt of 300 tokens: the conditioner on one rank that tells the others, then divided among all."""
        tokens = torch.randint(0, 500, (1, models.TEXT_ROWS), device=self.device)
        dist.broadcast(tokens, src=0)
        self._encode(tokens, 1, "encode, one rank")
        _free()
        self._encode(tokens, self.size, f"encode, divided by {self.size}")

    def _encode(self, tokens: Tensor, size: int, what: str) -> None:
        groups = form(self.rank, self.size, Parallel(ulysses_degree=self.size, conditioner_tensor_parallel=size))
        text_encoder = models.conditioner(self.device, self.dtype, self.options.tiny)
        conditioner.share(text_encoder, models.conditioner_layer(self.options.tiny), groups, self.dtype)
        inputs = {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "mm_token_type_ids": torch.zeros_like(tokens),
        }
        row = report.timed(lambda: text_encoder.model(**inputs, use_cache=False), self.device, warm=2, repeats=5)
        self.results[(what, "300 tokens")] = row.pop("result").last_hidden_state.cpu()
        self._row(row, "300 tokens", (what, "transformers"))

    def travel(self) -> None:
        """The exchanges of one block alone: packed queries, keys and values, then results; by both ways of travel."""
        shape, config = self.shapes[-1], models.TINY_TRANSFORMER if self.options.tiny else {}
        heads = config.get("num_attention_heads", 56) // self.size
        rows = -(-sum(case_rows(shape)) // self.size)
        group = form(self.rank, self.size, Parallel(ulysses_degree=self.size)).ulysses
        ways: dict[str, overlap.Travel] = {"collective": overlap.CollectiveTravel(group)}
        if mapped.why_not(group, self.device) is None:
            ways["copy engines"] = mapped.MappedTravel(group, self.device)
        for name, way in ways.items():
            for what, count in (("queries, keys and values", 3), ("results", 1)):
                parts = torch.randn((self.size, rows, count, heads, 128), device=self.device).to(self.dtype)
                row = report.timed(
                    lambda parts=parts, way=way, what=what: way.start(what, list(parts))(), self.device, repeats=10
                )
                del row["result"]
                sent = parts[0].nbytes * (self.size - 1)
                self._row(row | {"sent_gb_s": round(sent / row["median_s"] / 1e9, 1)}, shape.name, (what, name))

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
        together: bool = True,
    ) -> None:
        case = models.sequence(
            shape, self.device, self.dtype, text_dim=config["text_dim"], times=tuple(self.plan[step.AT].tolist())
        )
        if isinstance(call, FastTransformer):
            call.begin([case["timestep"]])
        if together:
            dist.barrier()
        row = report.timed(lambda: call(**case, return_dict=False), self.device, warm=int(repeats > 1), repeats=repeats)
        self.results[(label[0], shape.name)] = row.pop("result")[0].cpu()
        row |= {"rows": case["token_tags"].shape[0], "tflops": None}
        row["tflops"] = round(step.flops(row["rows"], config) / row["median_s"] / 1e12, 1)
        self._row(row, shape.name, label, together)

    def _row(self, row: dict[str, Any], shape: str, label: tuple[str, str], together: bool = True) -> None:
        """Keep a measurement: the slowest rank's seconds, the largest peak of all, and each rank's."""
        if together:
            everyone: list[Any] = [None] * self.size
            dist.all_gather_object(everyone, (row["median_s"], row["peak_gib"]))
            row |= {"ranks_s": [seconds for seconds, _ in everyone], "peaks_gib": [peak for _, peak in everyone]}
            if not label[0].startswith("decode"):  # there rank 0 has the frames, and others may have nothing to do
                row["median_s"] = max(row["ranks_s"])
            if row["peak_gib"] is not None:
                row["peak_gib"] = max(row["peaks_gib"])
        if self.rank == 0:
            self.rows.append(row | {"shape": shape, "what": label[0], "kernel": label[1]})
            print(label, shape, row["median_s"], "s", row["peak_gib"], "GiB", flush=True)

    def _seconds(self, what: str, shape: str) -> float | None:
        found = [row["median_s"] for row in self.rows if row["what"] == what and row["shape"] == shape]
        return found[0] if found else None

    def _estimate(self) -> dict[str, Any]:
        """Denoising of a 50-step job, and clips an hour of one job on all GPUs against one job on each."""
        found = {}
        for shape in (each.name for each in self.shapes):
            alone = self._seconds(REFERENCE, shape)
            decoded = (
                self._seconds("decode, one rank", shape),
                self._seconds(f"decode, tiles over {self.size}", shape),
            )
            for each in EXCHANGES:
                shared = self._seconds(f"ours, {each.value}", shape)
                if alone is None or shared is None:
                    continue
                jobs = FORWARDS * alone + (decoded[0] or 0), FORWARDS * shared + (decoded[1] or 0)
                found[f"{shape}, {each.value}"] = {
                    "with_decode": decoded[0] is not None,
                    "one_gpu_job_s": round(jobs[0], 3),
                    f"job_over_{self.size}_s": round(jobs[1], 3),
                    "clips_an_hour_more_jobs": round(self.size * 3600 / jobs[0], 2),
                    "clips_an_hour_one_faster": round(3600 / jobs[1], 2),
                }
        return found

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
