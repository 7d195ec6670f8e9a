"""The real model on one rank: diffusers' H3 blocks on torch, joined with its peers over a file store.

Knows the pipeline's interface and the files to write; how the computation runs on this hardware is `runtime`'s.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import torch
import torch.distributed as dist

from backend.errors import WriteFailure
from backend.events import Succeeded
from backend.h3.pipeline import Generated, Pipeline
from backend.h3.pipeline import Stopped as PipelineStopped
from backend.presets import Device
from backend.process.messages import Setup
from backend.runtime.parallel.group import TIMEOUT
from backend.runtime.setup import Runtime
from backend.types import Render, Stage
from backend.worker import sidecar
from backend.worker.models import Stopped
from backend.worker.output import Output, remove
from backend.worker.report import Report

DISTRIBUTIONS = ("torch", "diffusers", "transformers", "safetensors", "av", "numpy", "fa3-fwd", "torchao")


class NativeModel:
    """One loaded pipeline. Several ranks share a job as the setup says, and all agree on stopping."""

    def load(self, setup: Setup, report: Report) -> dict[str, object]:
        """Join the other ranks, load what all tasks share."""
        self._setup = setup
        self._report = report
        device = _device(setup)
        if setup.world_size > 1:
            _join(setup)
        self._runtime = Runtime.for_setup(setup, device, report.notice)
        self._output: Output | None = None
        show = self._show if setup.rank == 0 else None
        self._pipeline = Pipeline(
            Path(setup.checkpoint), device, setup.dtype.value, report.load, self._runtime.hooks(show)
        )
        self._fixed = {"versions": sidecar.versions(DISTRIBUTIONS), "device_name": _device_name(device)}
        return self._info

    def agree(self, stop: bool) -> bool:
        """Whether any rank was asked to stop: the maximum of all wishes, over gloo on the CPU."""
        if self._setup.world_size == 1:
            return stop
        wish = torch.tensor([int(stop)], dtype=torch.int32)
        dist.all_reduce(wish, op=dist.ReduceOp.MAX)
        return bool(wish.item())

    def generate(self, render: Render, report: Report) -> Succeeded | None:
        """Render; rank 0 writes MP4, sidecar and tensors. Raises Stopped, and H3Error after which the model goes on."""
        try:
            with self._runtime.recovering(render.request, lambda: report.stage_now):
                return self._render(render, report)
        except PipelineStopped as stopped:
            raise Stopped(stopped.stage, stopped.step, stopped.steps) from stopped

    def _render(self, render: Render, report: Report) -> Succeeded | None:
        if self._setup.rank != 0:
            self._pipeline.generate(render.request, render.media, None, report)
            return None
        with Output(render, report) as output:
            self._output = output
            made = self._pipeline.generate(render.request, render.media, output, report)
            assert made is not None
            report.stage(Stage.MUX, "closing the MP4")
            if render.tensors is not None:
                save_tensors(render.tensors, made)
            try:
                return output.seal(sidecar.describe(render, self._setup, self._info, report), report.notice)
            except BaseException:
                remove(render.tensors)
                raise

    def close(self) -> None:
        """Leave the group, so that no peer waits for this rank."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _show(self, step: int, picture: torch.Tensor) -> None:
        assert self._output is not None  # rank 0 denoises into an output
        self._output.preview(step, picture.numpy())

    @property
    def _info(self) -> dict[str, object]:
        """Facts for the sidecar; some are known only after the first job, as where tables came from."""
        return self._fixed | self._runtime.info()


def save_tensors(path: Path, made: Generated) -> None:
    """Write `latents`, `audio_latents` and `audio` (shapes as in Generated) to `path`, whole or not at all."""
    from safetensors.torch import save_file

    part = path.with_name(f".{uuid.uuid4().hex}.part")
    tensors = {"latents": made.latents, "audio_latents": made.audio_latents, "audio": made.audio}
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part)
        part.replace(path)
    except OSError as error:
        raise WriteFailure(
            f"{path.name} could not be written: {error}; free space in {path.parent} or choose another folder"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _device(setup: Setup) -> torch.device:
    if setup.device is Device.CPU:
        return torch.device("cpu")
    device = torch.device("cuda", setup.rank)
    torch.cuda.set_device(device)
    return device


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _join(setup: Setup) -> None:
    backend = "gloo" if setup.device is Device.CPU else "cpu:gloo,cuda:nccl"
    store = dist.FileStore(str(setup.rendezvous), setup.world_size)
    dist.init_process_group(backend, store=store, rank=setup.rank, world_size=setup.world_size, timeout=TIMEOUT)
