"""Attention kernels: what each needs, whether it works here, and the fastest that does.

Every kernel is tried on a small shape against a float32 reference before it is trusted; what is attended to, and by
which model, is not known here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from backend.errors import Unavailable

AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
TRIAL_ROWS = 333  # not a multiple of any tile, so that a kernel's edge handling is tried too
TRIAL_HEADS = 4
TRIAL_TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}  # relative, of the Frobenius norm


@dataclass(frozen=True, slots=True)
class Attention:
    """A kernel that was tried here and works. Call it with q, k, v (batch, rows, heads, head_dim)."""

    name: str
    precision: str
    function: AttentionFunction

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Unmasked softmax attention, (batch, rows, heads, head_dim), scaled by head_dim ** -0.5."""
        return self.function(query, key, value)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry of the registry. `load` imports what it needs and returns the function; it may raise ImportError."""

    name: str
    requirement: str  # for people
    layout: str  # of its own arguments; calls always use (batch, rows, heads, head_dim)
    precision: str
    dtypes: tuple[torch.dtype, ...]
    capabilities: tuple[int, ...]  # major CUDA compute capabilities; empty: any device
    package: str | None
    load: Callable[[], AttentionFunction]

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why this kernel cannot run on `device` with `dtype`, before trying it, or None."""
        if dtype not in self.dtypes:
            return f"needs {' or '.join(str(kind).removeprefix('torch.') for kind in self.dtypes)}, asked for {dtype}"
        if self.capabilities:
            if device.type != "cuda":
                return f"needs a CUDA device, found {device.type}"
            major, minor = torch.cuda.get_device_capability(device)
            if major not in self.capabilities:
                needed = " or ".join(f"{each}.x" for each in self.capabilities)
                return f"needs compute capability {needed}, found {major}.{minor}"
        if self.package is not None and not _installed(self.package):
            return f"package {self.package} is not installed"
        return None


def _installed(package: str) -> bool:
    # find_spec("a.b") raises where a itself is missing.
    parent = package.partition(".")[0]
    return importlib.util.find_spec(parent) is not None and importlib.util.find_spec(package) is not None


def _sdpa(backend: SDPBackend | None) -> AttentionFunction:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # (batch, heads, rows, head_dim) and back, as diffusers' native dispatch does.
        query, key, value = (part.permute(0, 2, 1, 3) for part in (query, key, value))
        if backend is None:
            out = functional.scaled_dot_product_attention(query, key, value)
        else:
            with sdpa_kernel(backend):
                out = functional.scaled_dot_product_attention(query, key, value)
        return out.permute(0, 2, 1, 3)

    return attend


@functools.cache
def _opaque(name: str, module: str, attribute: str) -> AttentionFunction:
    """A package's `flash_attn_func` as a custom operator, so that a compiled block keeps one graph around it."""
    kernel = getattr(importlib.import_module(module), attribute)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = kernel(query, key, value)
        return out[0] if isinstance(out, tuple) else out

    attend.__annotations__ = {"query": Tensor, "key": Tensor, "value": Tensor, "return": Tensor}
    operator = torch.library.custom_op(f"h3studio::{name}", attend, mutates_args=())
    operator.register_fake(lambda query, key, value: query.new_empty((*query.shape[:-1], value.shape[-1])))
    return operator


_HALF = (torch.bfloat16, torch.float16)
_ANY = (torch.bfloat16, torch.float16, torch.float32)
_FROM_AMPERE = (8, 9, 10, 11, 12)
_BSHD, _BHSD = "batch, rows, heads, head_dim", "batch, heads, rows, head_dim"

KERNELS: tuple[Kernel, ...] = (
    Kernel(
        name="fa3",
        requirement="Hopper (9.x), package fa3-fwd",
        layout=_BSHD,
        precision="bf16 products, fp32 softmax",
        dtypes=(torch.bfloat16,),
        capabilities=(9,),
        package="fa3_fwd_interface",
        load=lambda: _opaque("fa3", "fa3_fwd_interface", "flash_attn_func"),
    ),
    Kernel(
        name="fa4",
        requirement="Hopper or Blackwell (9.x to 12.x), package flash-attn-4",
        layout=_BSHD,
        precision="bf16 products, fp32 softmax",
        dtypes=_HALF,
        capabilities=(9, 10, 11, 12),
        package="flash_attn.cute",
        load=lambda: _opaque("fa4", "flash_attn.cute", "flash_attn_func"),
    ),
    Kernel(
        name="fa2",
        requirement="Ampere or newer (8.x and up), package flash-attn 2",
        layout=_BSHD,
        precision="bf16 products, fp32 softmax",
        dtypes=_HALF,
        capabilities=_FROM_AMPERE,
        package="flash_attn_2_cuda",
        load=lambda: _opaque("fa2", "flash_attn", "flash_attn_func"),
    ),
    Kernel(
        name="cudnn",
        requirement="Ampere or newer (8.x and up), cuDNN through torch",
        layout=_BHSD,
        precision="bf16 products, fp32 softmax",
        dtypes=_HALF,
        capabilities=_FROM_AMPERE,
        package=None,
        load=lambda: _sdpa(SDPBackend.CUDNN_ATTENTION),
    ),
    Kernel(
        name="flash",
        requirement="Ampere or newer (8.x and up), through torch",
        layout=_BHSD,
        precision="bf16 products, fp32 softmax",
        dtypes=_HALF,
        capabilities=_FROM_AMPERE,
        package=None,
        load=lambda: _sdpa(SDPBackend.FLASH_ATTENTION),
    ),
    Kernel(
        name="efficient",
        requirement="any CUDA device, through torch",
        layout=_BHSD,
        precision="products in the input type, fp32 softmax",
        dtypes=_ANY,
        capabilities=(5, 6, 7, *_FROM_AMPERE),
        package=None,
        load=lambda: _sdpa(SDPBackend.EFFICIENT_ATTENTION),
    ),
    Kernel(
        name="sdpa",
        requirement="any device; torch picks the kernel, as diffusers does by default",
        layout=_BHSD,
        precision="of the kernel torch picks",
        dtypes=_ANY,
        capabilities=(),
        package=None,
        load=lambda: _sdpa(None),
    ),
    Kernel(
        name="math",
        requirement="any device; memory grows with the square of the rows",
        layout=_BHSD,
        precision="products in the input type, softmax materialized",
        dtypes=_ANY,
        capabilities=(),
        package=None,
        load=lambda: _sdpa(SDPBackend.MATH),
    ),
)
NAMES = tuple(kernel.name for kernel in KERNELS)

# Fastest first, by measurement on Hopper (shared figures: FA3 171 ms, cuDNN 202 ms, FA2 type 327 ms at 63.5k rows) and
# by the kernels' own publications elsewhere. "math" is last everywhere: it is a reference, not a way to work.
_ORDER = {
    9: ("fa3", "cudnn", "fa4", "fa2", "flash", "efficient", "sdpa", "math"),
    8: ("fa2", "flash", "cudnn", "efficient", "sdpa", "math"),
}
_BLACKWELL_ORDER = ("fa4", "cudnn", "fa2", "flash", "efficient", "sdpa", "math")


def choose(device: torch.device, dtype: torch.dtype, wanted: str = "auto", head_dim: int = 128) -> Attention:
    """The kernel called `wanted`, or with "auto" the fastest that works on `device` with `dtype` and `head_dim`.

    Raises Unavailable, with the reason of every kernel that was considered, when `wanted` is unknown or does not work.
    """
    if wanted != "auto" and wanted not in NAMES:
        raise Unavailable(f"attention={wanted}: there is no such kernel; choose auto or one of {', '.join(NAMES)}")
    reasons = []
    for kernel in _candidates(device, wanted):
        works = tried(kernel, device, dtype, head_dim)
        if isinstance(works, Attention):
            return works
        reasons.append(f"{kernel.name}: {works}")
    raise Unavailable(
        f"attention={wanted}: does not work here ({'; '.join(reasons)}); attention=auto picks one that does"
    )


def survey(device: torch.device, dtype: torch.dtype, head_dim: int = 128) -> dict[str, str]:
    """Every kernel by name with "works" or the reason why not, for people (`doctor`)."""
    outcomes = {kernel.name: tried(kernel, device, dtype, head_dim) for kernel in KERNELS}
    return {name: "works" if isinstance(outcome, Attention) else outcome for name, outcome in outcomes.items()}


def _candidates(device: torch.device, wanted: str) -> Iterable[Kernel]:
    by_name = {kernel.name: kernel for kernel in KERNELS}
    if wanted != "auto":
        return [by_name[wanted]]
    if device.type != "cuda":
        return [by_name["sdpa"], by_name["math"]]
    major, _ = torch.cuda.get_device_capability(device)
    order = _ORDER.get(major, _BLACKWELL_ORDER if major >= 10 else ("efficient", "sdpa", "math"))
    return [by_name[name] for name in order]


@functools.cache
def tried(kernel: Kernel, device: torch.device, dtype: torch.dtype, head_dim: int) -> Attention | str:
    """The kernel, after it gave the right answer on a small shape on `device`; else the reason, in words."""
    reason = kernel.unavailable(device, dtype)
    if reason is not None:
        return reason
    generator = torch.Generator().manual_seed(0)
    shape = (3, 1, TRIAL_ROWS, TRIAL_HEADS, head_dim)
    query, key, value = torch.randn(shape, generator=generator).to(device, dtype)
    expected = _reference(query, key, value)
    try:
        function = kernel.load()
        with torch.no_grad():
            got = function(query, key, value).float()
    except (ImportError, OSError, AttributeError) as error:
        return f"cannot be imported: {error}"
    except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError) as error:
        return f"refuses: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
    distance = float((got - expected).norm() / expected.norm())
    if not distance <= TRIAL_TOLERANCE[dtype]:
        return f"gives a wrong result: relative error {distance:.1e}, allowed {TRIAL_TOLERANCE[dtype]:.0e}"
    return Attention(kernel.name, kernel.precision, function)


def _reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (part.float().permute(0, 2, 1, 3) for part in (query, key, value))
    weights = torch.softmax(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, dim=-1)
    return (weights @ value).permute(0, 2, 1, 3)
