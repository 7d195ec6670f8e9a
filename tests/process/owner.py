"""A parent for tests to kill: owns a fleet, prints the ranks' process ids, renders for ever or sits idle."""

import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from ranks import fleet, render


def main() -> None:
    folder, checkpoint, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    ranks = fleet(folder, checkpoint, world_size=2)
    if mode == "start":
        threading.Thread(target=lambda: list(ranks.start()), daemon=True).start()
        while len(ranks.pids) < 2:
            time.sleep(0.01)
        print(*ranks.pids, flush=True)
        time.sleep(60)
    short = threading.Thread(target=lambda: list(ranks.start()))  # the starting thread may end: the ranks must not
    short.start()
    short.join()
    time.sleep(0.5)
    print(*ranks.pids, ranks.state.value, flush=True)
    if mode == "render":
        for _ in ranks.generate(render(folder, steps=1000)):
            pass
    time.sleep(60)


main()
