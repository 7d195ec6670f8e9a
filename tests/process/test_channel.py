import contextlib
import queue
import socket
import threading
import time

import pytest

from backend.process.channel import CLOSED, MAX_LINE_BYTES, Channel, ChannelError, pair
from backend.process.messages import Answer, Cancel, Command, Done, Ready
from backend.types import JobId


@pytest.fixture
def line():
    ours, theirs = pair()
    received = queue.SimpleQueue()
    channel = Channel(ours, Answer, "rank 3", send_timeout_s=0.2)
    channel.read_into(received.put)
    yield channel, theirs, received
    channel.close()
    theirs.close()


def test_messages_arrive_in_order_whatever_the_pieces(line):
    _, theirs, received = line
    wire = b'{"type":"Done","rank":1,"job":"a"}\n{"type":"Ready","rank":2,"pid":9,"info":{"k":[1]}}\n'
    for byte in wire:
        theirs.send(bytes([byte]))
    assert received.get(timeout=2) == Done(rank=1, job=JobId("a"))
    assert received.get(timeout=2) == Ready(rank=2, pid=9, info={"k": [1]})


def test_what_is_sent_is_one_line_of_json(line):
    channel, theirs, _ = line
    channel.send(Cancel(job=JobId("7")))
    assert theirs.recv(1000) == b'{"type":"Cancel","job":"7"}\n'


@pytest.mark.parametrize(
    ("wire", "says"),
    [
        (b"hello\n", "nobody can read: 'hello'"),
        (b"[1, 2]\n", "expected an object"),
        (b'{"type":"Cancel","job":"7"}\n', "unknown type 'Cancel'"),
        (b'{"type":"Done","rank":"one","job":"a"}\n', "rank='one': must be a int"),
        (b"\xff\xfe\n", "nobody can read"),
        (b"[" * 100_000 + b"\n", "nobody can read"),
    ],
)
def test_a_garbled_line_names_the_peer_and_ends_the_reading(line, wire, says):
    _, theirs, received = line
    theirs.sendall(wire + b'{"type":"Done","rank":1,"job":"a"}\n')
    error = received.get(timeout=2)
    assert isinstance(error, ChannelError)
    assert "rank 3" in str(error)
    assert says in str(error)
    with pytest.raises(queue.Empty):
        received.get(timeout=0.1)


def test_an_endless_line_is_refused_before_it_fills_memory(line):
    _, theirs, received = line
    chunk = b"x" * 65_536
    theirs.settimeout(2)
    sent = 0
    with contextlib.suppress(TimeoutError):  # once it has refused, nobody reads
        while received.empty() and sent < 2 * MAX_LINE_BYTES:
            sent += theirs.send(chunk)
    assert "rank 3: sent a line of more than" in str(received.get(timeout=2))
    assert sent <= MAX_LINE_BYTES + 2**20


def test_end_of_file_is_told_once_and_in_mid_line_is_an_error(line):
    _, theirs, received = line
    theirs.close()
    assert received.get(timeout=2) is CLOSED
    ours, theirs = pair()
    channel = Channel(ours, Answer, "rank 4")
    channel.read_into(received.put)
    theirs.sendall(b'{"type":')
    theirs.close()
    assert "rank 4: hung up in mid-line" in str(received.get(timeout=2))
    channel.close()


def test_sending_to_the_dead_and_to_the_stuck_ends_in_an_error(line):
    channel, theirs, _ = line
    began = time.monotonic()
    with pytest.raises(ChannelError, match="rank 3: cannot send Cancel"):
        for _ in range(100):  # nobody reads: the buffer fills up
            channel.send(Cancel(job=JobId("j" * 50_000)))
    assert time.monotonic() - began < 3
    theirs.close()
    with pytest.raises(ChannelError, match="cannot send"):
        channel.send(Cancel(job=JobId("7")))


def test_many_threads_never_mix_their_lines():
    ours, theirs = pair()
    received = queue.SimpleQueue()
    sender, reader = Channel(ours, Answer, "a"), Channel(theirs, Command, "b")
    reader.read_into(received.put)

    def shout(name: str) -> None:
        for _ in range(50):
            sender.send(Cancel(job=JobId(name * 5_000)))

    threads = [threading.Thread(target=shout, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    jobs = [received.get(timeout=5).job for _ in range(200)]
    for thread in threads:
        thread.join()
    assert sorted(set(jobs)) == [name * 5_000 for name in "abcd"]
    sender.close()
    reader.close()


def test_neither_end_is_inherited_by_accident():
    ours, theirs = pair()
    assert not ours.get_inheritable()
    assert not theirs.get_inheritable()
    assert ours.type == socket.SOCK_STREAM
    ours.close()
    theirs.close()
