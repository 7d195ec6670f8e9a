"""Ranks on gloo that stay for all tests and run what they are told, together.

They are forked from one server that has imported torch and diffusers, which is what costs.
"""

import datetime
import multiprocessing
import traceback

TIMEOUT = datetime.timedelta(seconds=60)
PRELOAD = ["backend.runtime.transformer", "backend.runtime.conditioner", "bench.models"]


def _serve(rank, size, store, line):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=TIMEOUT)
    while (order := line.recv()) is not None:
        function, arguments = order
        try:
            line.send((function(rank, *arguments), None))
        except BaseException:
            line.send((None, traceback.format_exc()))


class Team:
    """`size` processes in one gloo group."""

    def __init__(self, size, folder):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._lines, self._processes = [], []
        for rank in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, str(folder / "store"), theirs), daemon=True)
            process.start()
            theirs.close()
            self._lines.append(mine)
            self._processes.append(process)

    def run(self, function, *arguments):
        """`function(rank, size, *arguments)` on every rank at once; the results by rank."""
        for line in self._lines:
            line.send((function, (len(self._lines), *arguments)))
        answers = []
        for rank, line in enumerate(self._lines):
            assert line.poll(90), f"rank {rank} does not answer"
            answers.append(line.recv())
        failed = "\n".join(f"rank {rank}: {error}" for rank, (_, error) in enumerate(answers) if error)
        assert not failed, failed
        return [result for result, _ in answers]

    def close(self):
        for line in self._lines:
            line.send(None)
        for process in self._processes:
            process.join(10)
            process.kill()
