"""Followers: nothing lost, nothing twice, however late they come."""

import threading
import time

from backend.events import Cancelled, Heartbeat, Queued, StepDone
from backend.jobs.feed import Channel, Feed
from backend.types import JobId


def step(seq):
    return StepDone(seq=seq, step=seq, steps=9, seconds=0.1)


def test_a_late_follower_gets_everything_and_after_skips():
    channel = Channel([Queued(seq=1, position=1)])
    channel.publish(step(2))
    channel.publish(Cancelled(seq=3))
    assert [event.seq for event in channel.follow(0, None)] == [1, 2, 3]
    assert [event.seq for event in channel.follow(2, None)] == [3]
    assert list(channel.follow(3, None)) == []
    assert list(channel.follow(99, None)) == []


def test_heartbeats_wake_but_do_not_number():
    channel = Channel([Queued(seq=1, position=1)])
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(channel.follow(0, None)))
    thread.start()
    time.sleep(0.1)
    channel.publish(Heartbeat(rank=0, stage=None))
    time.sleep(0.1)
    channel.publish(step(2))
    channel.publish(Cancelled(seq=3))
    thread.join(5)
    assert [(type(event), event.seq) for event in seen] == [
        (Queued, 1),
        (Heartbeat, 1),
        (StepDone, 2),
        (Cancelled, 3),
    ]


def test_a_deadline_ends_the_wait_without_an_end():
    channel = Channel([Queued(seq=1, position=1)])
    began = time.monotonic()
    assert [event.seq for event in channel.follow(0, time.monotonic() + 0.2)] == [1]
    assert 0.15 < time.monotonic() - began < 2


def test_closing_lets_followers_go():
    feed = Feed()
    feed.open(JobId("a"))
    ended = threading.Event()

    def follow():
        list(feed.channel(JobId("a")).follow(0, None))
        ended.set()

    threading.Thread(target=follow).start()
    feed.close()
    assert ended.wait(5)


def test_fifty_followers_see_the_same_events_soon():
    channel = Channel([])
    delays, lock = [], threading.Lock()

    def follow():
        for event in channel.follow(0, None):
            with lock:
                delays.append(time.monotonic() - event.at)

    threads = [threading.Thread(target=follow) for _ in range(50)]
    for thread in threads:
        thread.start()
    for seq in range(1, 21):
        channel.publish(StepDone(seq=seq, at=time.monotonic(), step=seq, steps=20, seconds=0.1))
        time.sleep(0.01)
    channel.publish(Cancelled(seq=21, at=time.monotonic()))
    for thread in threads:
        thread.join(5)
    assert len(delays) == 50 * 21
    assert max(delays) < 1.0
