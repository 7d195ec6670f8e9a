"""The map of who may import whom, read from the sources; an arrow that points the wrong way fails here."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LEAVES = {"types", "events", "errors", "codec", "limits", "presets", "settings", "footprint"}

# room -> rooms it may import besides the leaves and itself
ARROWS = {
    "app": {"h3ui", "backend.api", "backend.commands", "backend.media"},
    "h3ui": {"backend.api", "backend.http", "backend.jobs.records"},
    "backend.commands": {
        "backend.api",
        "backend.checkpoints",
        "backend.hardware",
        "backend.http.running",
        "backend.jobs.lock",
        "backend.media",
    },
    "backend.api": {"backend.door", "backend.jobs", "backend.hardware", "backend.checkpoints", "backend.media"},
    "backend.door": {
        "backend.jobs",
        "backend.engines",
        "backend.hardware",
        "backend.checkpoints",
        "backend.media",
        "backend.process",
    },
    "backend.http": {"backend.api", "backend.jobs.records", "backend.media"},
    "backend.jobs": {"backend.engines", "backend.media", "backend.checkpoints", "backend.hardware"},
    "backend.engines": {"backend.process", "backend.hardware", "backend.media"},
    "backend.hardware": {"backend.checkpoints"},
    "backend.process": set(),
    "backend.media": set(),
    "backend.checkpoints": set(),
    "backend.worker": {"backend.process", "backend.media", "backend.runtime", "backend.h3"},
    "backend.runtime": {"backend.h3", "backend.process.messages"},
    "backend.h3": set(),
}
LEAF_ARROWS = {
    "types": set(),
    "events": {"types"},
    "errors": {"types"},
    "codec": set(),
    "limits": {"types", "errors"},
    "presets": {"types", "errors", "codec"},
    "settings": set(),
    "footprint": {"presets"},
}
TORCH_ROOMS = ("backend.worker", "backend.runtime", "backend.h3")
TORCH_FILES = ("backend/checkpoints/nano.py",)  # runs as a program of its own, never imported by the parent
HEAVY = {"torch", "diffusers", "transformers", "torchao", "peft", "accelerate"}


def sources() -> list[Path]:
    return [ROOT / "app.py", *sorted((ROOT / "h3ui").rglob("*.py")), *sorted((ROOT / "backend").rglob("*.py"))]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def room_of(module: str) -> str:
    return max((room for room in ARROWS if module == room or module.startswith(room + ".")), key=len, default="")


def is_leaf(module: str) -> bool:
    parts = module.split(".")
    return parts[0] == "backend" and len(parts) > 1 and parts[1] in LEAVES


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_down(path):
    module = module_of(path)
    wrong = []
    for target in imports_of(path):
        if target.split(".")[0] not in ("app", "h3ui", "backend"):
            continue
        if is_leaf(module):
            allowed = LEAF_ARROWS[module.split(".")[1]] | {module.split(".")[1]}
            ok = any(target == f"backend.{leaf}" or target.startswith(f"backend.{leaf}.") for leaf in allowed)
            ok = ok or (target.startswith("backend.") and target.split(".")[1] in allowed)
        else:
            room = room_of(module)
            allowed_rooms = ARROWS.get(room, set()) | {room}
            ok = is_leaf(target) or any(target == r or target.startswith(r + ".") for r in allowed_rooms if r)
        if not ok:
            wrong.append(target)
    assert not wrong, f"{module} must not import {wrong}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_worker_side_imports_torch(path):
    module = module_of(path)
    if module.startswith(TORCH_ROOMS) or str(path.relative_to(ROOT)) in TORCH_FILES:
        return
    heavy = {name for name in imports_of(path) if name.split(".")[0] in HEAVY}
    assert not heavy, f"{module} runs in the parent process and must not import {sorted(heavy)}"


def test_every_room_is_on_the_map():
    unknown = {module_of(path) for path in sources() if not is_leaf(module_of(path)) and not room_of(module_of(path))}
    assert unknown <= {"backend"}


def test_every_folder_says_what_it_is():
    for folder in {path.parent for path in sources()} - {ROOT}:
        tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), folder


def test_parent_side_really_loads_without_torch():
    code = (
        "import sys, app, h3ui.page, backend.api, backend.engines.native, backend.media.prepare, backend.http\n"
        f"print(sorted(set(sys.modules) & {HEAVY!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_two_test_files_share_a_name():
    """pytest imports them by their bare name: the second of two would never run."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
