"""The command line of H3 Studio: ui (default), generate, inspect, doctor, models. No logic of its own.

Progress goes to stderr, one JSON object with the result to stdout. Exit codes: 0 done, 2 bad request (nothing was
loaded), 1 failed job, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from backend import codec, limits, settings
from backend.errors import H3Error, InvalidRequest, Problem
from backend.settings import Settings
from backend.types import Adapter, GenerationRequest, Reference, Sampling, Task

Trim = tuple[int, float, float | None]  # number of a reference, its first second, its seconds
COMMANDS = ("ui", "generate", "inspect", "doctor", "models")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in (*COMMANDS, "-h", "--help"):
        arguments.insert(0, "ui")
    options = _parser().parse_args(arguments)
    chosen = settings.from_environment(options.data_dir, getattr(options, "checkpoint", None), _gpus(options))
    run: Callable[[argparse.Namespace, Settings], int] = options.run
    try:
        return run(options, chosen)
    except H3Error as error:
        print(f"h3-studio: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("h3-studio: stopped", file=sys.stderr)
        return 130


def ui(options: argparse.Namespace, chosen: Settings) -> int:
    """Serve the page until it is stopped."""
    from backend.api import Backend
    from backend.commands.state import check_settings
    from h3ui.serve import ServeOptions, serve

    check_settings(chosen)
    space = chosen.space
    serving = ServeOptions(
        host=options.host or ("0.0.0.0" if space else "127.0.0.1"),
        port=options.port or (space.port if space else 7860),
        space=space is not None,
        mcp=options.mcp,
        share=options.share or options.share_open,
        share_open=options.share_open,
        auth=tuple(options.auth) or (space.logins if space else ()),
        open_browser=options.open,
        admin=options.admin,
        accept_licence=options.accept_licence or (space is not None and space.accept_licence),
        finish_running=options.finish_running,
    )
    chosen = replace(chosen, writer=settings.writer_settings(options.writer_url, options.writer_model))
    backend = Backend(chosen, preset=options.preset, fleets=options.fleets)
    serve(backend, chosen, serving, lambda line: print(f"H3 Studio: {line}", flush=True))
    return 0


def generate(options: argparse.Namespace, chosen: Settings) -> int:
    """Run one job without a page."""
    from backend.api import Backend
    from backend.commands import generation, state

    try:
        state.check_settings(chosen)
        problems, request = _request(options)
        with (
            state.private_state(chosen) as private,
            contextlib.closing(Backend(private, preset=options.preset)) as backend,
        ):
            if options.steps is None and options.request is None:
                request = request.with_steps(backend.default_steps(request, options.quality))
            target = generation.Target(
                out=options.out.absolute(),
                tensors=_absolute(options.tensors),
                quality=options.quality,
                inputs=() if options.request is None else (options.request.absolute(),),
            )
            result = generation.generate_to_file(backend, request, target, problems)
    except H3Error as error:
        found = [codec.encode(problem) for problem in getattr(error, "problems", ())]
        _print_json({"ok": False, "error": str(error), "problems": found})
        raise
    _print_json(result)
    return 0 if result["ok"] else 1


def inspect(options: argparse.Namespace, chosen: Settings) -> int:
    """Say what a file is and what a job would make of it."""
    from backend.commands.reports import inspect_media
    from backend.media.inspection import Inspection
    from backend.media.sandbox import Role

    inspection = Inspection(
        role=Role(options.role),
        width=options.width,
        height=options.height,
        start_s=options.start,
        length_s=options.length,
    )
    report, text = inspect_media(options.file.expanduser(), inspection, _absolute(options.out))
    _print_report(options, report, text)
    return 0


def doctor(options: argparse.Namespace, chosen: Settings) -> int:
    """Say what this machine has, which preset fits it and why the others do not."""
    from backend.commands.reports import examine_machine
    from backend.commands.state import check_settings

    check_settings(chosen)
    report, text = examine_machine(chosen, options.preset, options.fleets)
    _print_report(options, report, text)
    return 0


def models(options: argparse.Namespace, chosen: Settings) -> int:
    """List the checkpoints; download, check or remove one."""
    from backend.commands import models as shelf
    from backend.commands.reports import list_models, verify_model

    if options.action == "list":
        _print_report(options, *list_models(chosen))
        return 0
    if options.action == "verify" and not options.hashes:
        print(verify_model(options.name, chosen))
        return 0
    if options.action == "download":
        asked = shelf.Download(name=options.name, tasks=options.tasks, accept_licence=options.accept_licence)
        result = shelf.download(asked, chosen)
    elif options.action == "verify":
        result = shelf.verify(options.name, chosen)
    else:
        result = shelf.remove(options.name, chosen, sure=options.yes)
    _print_json(result)
    return 0 if result["ok"] else 1


def _request(options: argparse.Namespace) -> tuple[tuple[Problem, ...], GenerationRequest]:
    """The request that `generate` was asked for, and what is wrong with arguments that a request cannot hold.

    With `--request`, the file's request, changed by whatever other option is given.
    """
    base = GenerationRequest(prompt="")
    if options.request is not None:
        from backend.commands.generation import read_request

        base = read_request(options.request)
    given: dict[str, object] = {
        "prompt": options.prompt,
        "first_frame": _absolute(options.first_frame),
        "last_frame": _absolute(options.last_frame),
        "references": tuple(Reference(path=path.absolute()) for path in options.reference) or None,
    }
    problems, sampling = _sampling(options, base.sampling)
    changed = {name: value for name, value in given.items() if value is not None}
    request = replace(base, sampling=sampling, **changed)  # type: ignore[arg-type]
    return _trimmed(request, options.trim, problems)


def _trimmed(
    request: GenerationRequest, trims: list[Trim], problems: tuple[Problem, ...]
) -> tuple[tuple[Problem, ...], GenerationRequest]:
    references = list(request.references)
    for number, start_s, length_s in trims:
        if 1 <= number <= len(references):
            references[number - 1] = replace(references[number - 1], start_s=start_s, length_s=length_s)
        else:
            rule = f"there {'is' if len(references) == 1 else 'are'} {len(references)} to trim, counted from 1"
            problems += (Problem(field="trim", value=str(number), rule=rule),)
    return problems, replace(request, references=tuple(references))


def _sampling(options: argparse.Namespace, base: Sampling) -> tuple[tuple[Problem, ...], Sampling]:
    problems: tuple[Problem, ...] = ()
    given: dict[str, object] = {"num_frames": options.frames, "num_inference_steps": options.steps}
    if options.duration is not None:
        try:
            given["num_frames"] = limits.num_frames_for_duration(options.duration)
        except InvalidRequest as error:
            problems = error.problems
    changed = {name: value for name, value in given.items() if value is not None}
    shifts = {"flow_shift": options.flow_shift, "audio_flow_shift": options.audio_flow_shift}
    changed |= {name: value for name, value in shifts.items() if value is not None}
    if options.seed is not None:
        changed["seed"] = None if options.seed == -1 else options.seed
    if options.adapter:
        changed["adapters"] = tuple(options.adapter)
    if not (options.width is None and options.height is None and options.ratio is None):
        changed |= {"width": options.width, "height": options.height, "ratio": options.ratio}
    return problems, replace(base, **changed)  # type: ignore[arg-type]


def _gpus(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(part.strip() for part in getattr(options, "gpus", "").split(",") if part.strip())


def _login(text: str) -> tuple[str, str]:
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise argparse.ArgumentTypeError("must be USER:PASSWORD")
    return user, password


def _tasks(text: str) -> tuple[Task, ...]:
    from backend.commands.models import tasks_of

    try:
        return tasks_of([word.strip() for word in text.split(",") if word.strip()])
    except ValueError as error:
        raise argparse.ArgumentTypeError("must be text, references, all, or tasks such as t2va,ref2va") from error


def _adapter(text: str) -> Adapter:
    """FILE or FILE:SCALE; a colon with no number after it belongs to the name."""
    name, colon, scale = text.rpartition(":")
    try:
        found = Adapter(path=_path(name), scale=float(scale)) if colon and name else Adapter(path=_path(text))
    except ValueError:
        found = Adapter(path=_path(text))
    return replace(found, path=found.path.absolute())


def _path(text: str) -> Path:
    """A file; of a quoted `~/` the shell has left the home folder to us, while `~name` may be a file's name."""
    return Path(text).expanduser() if text == "~" or text.startswith("~/") else Path(text)


def _trim(text: str) -> Trim:
    """N:START or N:START+LENGTH, in seconds."""
    number, _, part = text.partition(":")
    start, plus, length = part.partition("+")
    try:
        return int(number), float(start or 0), float(length) if plus else None
    except ValueError:
        raise argparse.ArgumentTypeError("must be N:START or N:START+LENGTH, such as 1:2.5+4") from None


def _absolute(path: Path | None) -> Path | None:
    return path.absolute() if path is not None else None


def _print_report(options: argparse.Namespace, report: dict[str, object], text: str) -> None:
    print(json.dumps(report, ensure_ascii=False, indent=1) if options.json else text)


def _print_json(value: dict[str, object]) -> None:
    print(json.dumps(value, ensure_ascii=False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="app.py", description="H3 Studio: video with sound from MiniMax-H3. Without a command it opens the page."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--data-dir", type=Path, help="folder for jobs, checkpoints and logs")
    machine = argparse.ArgumentParser(add_help=False, parents=[where])
    machine.add_argument("--preset", help="hardware preset; chosen for this machine when left out (see doctor)")
    machine.add_argument("--gpus", default="", metavar="0,1", help="use only these GPUs, by index or UUID")
    machine.add_argument(
        "--fleets", type=int, metavar="N", help="jobs at once, each on GPUs of its own: 1 all for one job, 0 most jobs"
    )
    machine.add_argument("--checkpoint", help="catalog name, folder or repository id instead of the preset's own")
    _add_ui(commands.add_parser("ui", parents=[machine], help="open the page (default)"))
    _add_generate(commands.add_parser("generate", parents=[machine], help="run one job without a page"))
    _add_inspect(commands.add_parser("inspect", parents=[where], help="say what a media file is and what a job sees"))
    check = commands.add_parser("doctor", parents=[machine], help="examine this machine and the presets")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(run=doctor)
    _add_models(commands.add_parser("models", help="checkpoints on this machine"), where)
    return parser


def _add_ui(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 7860)")
    parser.add_argument(
        "--auth", action="append", default=[], type=_login, metavar="USER:PASSWORD", help="login; may be repeated"
    )
    parser.add_argument("--share", action="store_true", help="open a public share link; needs --auth")
    parser.add_argument("--share-open", action="store_true", help="a public share link without a password")
    parser.add_argument("--admin", metavar="USER", help="who sees every job and may pause; the first --auth user")
    parser.add_argument("--accept-licence", action="store_true", help="accept the model's licence; kept, given once")
    parser.add_argument(
        "--finish-running", action="store_true", help="when stopped, give the running job a few seconds"
    )
    parser.add_argument("--writer-url", metavar="URL", help="OpenAI-compatible server that may write prompts")
    parser.add_argument("--writer-model", metavar="NAME", help="its model; a key comes from H3_WRITER_KEY")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--mcp", action="store_true", help="offer the four endpoints as MCP tools; needs gradio[mcp]")
    parser.set_defaults(run=ui)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", help="what to see and hear")
    parser.add_argument("--first-frame", type=_path, metavar="F", help="picture the video starts from")
    parser.add_argument("--last-frame", type=_path, metavar="F", help="picture the video ends on")
    parser.add_argument("--reference", type=_path, metavar="F", action="append", default=[], help="may be repeated")
    parser.add_argument(
        "--trim",
        type=_trim,
        metavar="N:START[+LENGTH]",
        action="append",
        default=[],
        help="use a part of reference N (1 is the first), in seconds; may be repeated",
    )
    parser.add_argument(
        "--adapter", type=_adapter, metavar="F[:SCALE]", action="append", default=[], help="LoRA file; may be repeated"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--duration", type=float, metavar="S", help="4 to 15 seconds (default 5)")
    length.add_argument("--frames", type=int, metavar="N", help="frames at 24 fps, of the form 17n+5")
    parser.add_argument("--width", type=int, metavar="W", help="px, a multiple of 32")
    parser.add_argument("--height", type=int, metavar="H", help="px, a multiple of 32")
    parser.add_argument("--ratio", metavar="W:H", help="canvas by ratio, such as 16:9")
    parser.add_argument("--steps", type=int, metavar="N", help="sigma points; N - 1 forwards (default: the preset's)")
    parser.add_argument("--seed", type=int, metavar="N", help="left out or -1: a random one, recorded in the result")
    parser.add_argument("--flow-shift", type=float, metavar="S", help="of the video's schedule (default: the model's)")
    parser.add_argument("--audio-flow-shift", type=float, metavar="S", help="of the sound's schedule")
    parser.add_argument("--quality", default="standard", help="quality preset (default standard)")
    parser.add_argument(
        "--request", type=_path, metavar="FILE", help="a sidecar JSON or one of our MP4s; other options change it"
    )
    parser.add_argument("--tensors", type=_path, metavar="FILE", help="also save latents and audio as safetensors")
    parser.add_argument("--out", type=_path, required=True, metavar="FILE.mp4", help="where the video goes")
    parser.set_defaults(run=generate)


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path)
    parser.add_argument("--as", dest="role", choices=("first-frame", "reference"), default="reference")
    parser.add_argument("--width", type=int, metavar="W", help="canvas width of the job, px")
    parser.add_argument("--height", type=int, metavar="H", help="canvas height of the job, px")
    parser.add_argument("--start", type=float, default=0.0, metavar="S", help="use the clip from this second on")
    parser.add_argument("--length", type=float, metavar="S", help="use this many seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write what the model will see into this folder")
    parser.set_defaults(run=inspect)


def _add_models(parser: argparse.ArgumentParser, where: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    listing = actions.add_parser("list", parents=[where], help="what there is, in which state")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    verify = actions.add_parser("verify", parents=[where], help="check that a checkpoint is complete")
    verify.add_argument("name", help="catalog name, folder or repository id")
    verify.add_argument("--hashes", action="store_true", help="read every file and compare its hash; takes minutes")
    fetch = actions.add_parser("download", parents=[where], help="fetch a model, going on with what is there")
    fetch.add_argument(
        "name", nargs="?", default="MiniMaxAI/MiniMax-H3", help="repository id (default: the released one)"
    )
    fetch.add_argument(
        "--for", dest="tasks", type=_tasks, default=(), metavar="TASKS", help="text, references or all (default all)"
    )
    fetch.add_argument("--accept-licence", action="store_true", help="accept the model's licence; kept, given once")
    remove = actions.add_parser("remove", parents=[where], help="delete a model from this disk")
    remove.add_argument("name", help="catalog name or repository id")
    remove.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=models)


if __name__ == "__main__":
    sys.exit(main())
