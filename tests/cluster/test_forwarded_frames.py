"""What an owner says goes on to a client in whole frames."""

from __future__ import annotations

import pytest

from rabbitpy_broker.cluster.forwarding import Frames


@pytest.mark.parametrize("step", [1, 5, 20, 1_000])
def test_frames_go_on_when_they_are_whole(step: int):
    """However they are cut; connection.close among them is seen, and the same bytes in a body are not."""
    close = b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\xce"
    said = [b"\x03\x00\x01\x00\x00\x00\x0c" + close + b"\xce", b"\x08\x00\x00\x00\x00\x00\x00\xce", close]
    stream = b"".join(said)
    frames, got = Frames(), []
    for start in range(0, len(stream), step):
        whole = frames.whole(stream[start : start + step])
        if whole:
            got.append(whole)
        assert frames.is_closing == (len(b"".join(got)) == len(stream))
    ends = [len(b"".join(said[: number + 1])) for number in range(len(said))]
    assert b"".join(got) == stream
    assert all(len(b"".join(got[: number + 1])) in ends for number in range(len(got)))
