"""Components moved between GPU and host memory whole, with shared storage kept shared.

A parked component keeps its host copy while it works on the GPU, so that parking it again moves nothing; which ones
are parked at all is the plan's decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

Storages = dict[int, Tensor]  # address of a storage on its home device -> its bytes, as uint8


class Residency:
    """Answers `place`: what is named is brought to the device, what may be parked and is not named leaves it.

    parked: names that wait in host memory. lazy: those of them that are brought by `ensure` only, when they really
    run. on_leave: called with a component's name after it left, so that others let go of tensors they hold of it.
    stays: given component and parameter name, whether that one remains in host memory even while its component runs.
    """

    def __init__(
        self,
        device: torch.device,
        parked: tuple[str, ...],
        on_leave: Callable[[str], None],
        lazy: tuple[str, ...] = (),
        stays: Callable[[str, str], bool] | None = None,
    ) -> None:
        self._device = device
        self._parked = parked
        self._lazy = lazy
        self._stays = stays
        self._on_leave = on_leave
        self._home: dict[str, list[tuple[Tensor, Tensor]]] = {}  # name -> (tensor, its host version)
        self._deferred: Mapping[str, nn.Module] = {}
        self.moves: list[str] = []  # "+name" brought, "-name" left, in order; for reports and tests

    def place(self, wanted: Mapping[str, nn.Module]) -> None:
        """Have the named modules on the device, together."""
        modules = {name: module for name, module in wanted.items() if isinstance(module, nn.Module)}
        if modules and all(name in self._lazy and name in self._parked for name in modules):
            self._deferred = modules
            return
        self._place(modules)

    def ensure(self) -> None:
        """Bring what the last `place` deferred."""
        modules, self._deferred = self._deferred, {}
        if modules:
            self._place(modules)

    def clear(self) -> None:
        """Have every parked component back in host memory, as after a job that could not go on."""
        self._deferred = {}
        self._place({})

    def drop(self, names: tuple[str, ...]) -> None:
        """Forget components that no longer exist."""
        for name in names:
            self._home.pop(name, None)

    def _place(self, modules: Mapping[str, nn.Module]) -> None:
        for name in [name for name in self._home if name not in modules]:
            self._leave(name)
        for name, module in modules.items():
            if name in self._home:
                continue
            home = []
            for tensor, moved in on_device(module, self._device, self._kept_home(name)):
                home.append((tensor, tensor.data))
                tensor.data = moved
            if name in self._parked:
                self._home[name] = home
                self.moves.append(f"+{name}")

    def _kept_home(self, component: str) -> Callable[[str], bool]:
        stays = self._stays
        return (lambda _: False) if stays is None else (lambda name: stays(component, name))

    def _leave(self, name: str) -> None:
        for tensor, host in self._home.pop(name):
            tensor.data = host
        self._on_leave(name)
        self.moves.append(f"-{name}")


def on_device(
    module: nn.Module, device: torch.device, stays: Callable[[str], bool] = lambda _: False
) -> list[tuple[Tensor, Tensor]]:
    """What of `module` is elsewhere, with its version on `device`; views of one storage stay views of one.

    Tensors without storage (projections that tables replace) are left out, and those whose name `stays`.
    """
    storages: Storages = {}
    pairs = []
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_meta or tensor.device.type == device.type or stays(name):
            continue
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in storages:
            source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            storages[address] = source.to(device)
        target = torch.empty(0, dtype=tensor.dtype, device=device)
        target.set_(storages[address].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        pairs.append((tensor, target))
    return pairs
