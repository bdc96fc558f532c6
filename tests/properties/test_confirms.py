"""Confirms against a plain account of which publish_seqno was promised what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_syncs import FakeSyncs
from fake_turns import FakeTurns
from rabbitpy_broker.message import ConfirmWaiter
from rabbitpy_broker.protocol.confirm_pause import LONGEST_PAUSE
from rabbitpy_broker.protocol.confirms import Confirms
from rabbitpy_broker.protocol.output import LOST, Output
from rabbitpy_broker.protocol.turn import Turn


def told(frames: bytes) -> list[tuple[bool, int, bool]]:
    """Every (is ack, delivery_tag, multiple) of the frames of 21 octets."""
    assert len(frames) % 21 == 0
    out = []
    for at in range(0, len(frames), 21):
        frame = frames[at : at + 21]
        assert frame[:10] == b"\x01\x00\x07\x00\x00\x00\x0d\x00\x3c\x00"
        assert frame[10] in (80, 120)
        assert frame[20] == 0xCE
        out.append((frame[10] == 80, int.from_bytes(frame[11:19], "big"), frame[19] == 1))
    return out


class Account:
    """A channel's confirms, and beside them what each publish still waits for."""

    def __init__(self, *, pauses: bool = False) -> None:
        self.pauses = pauses
        self.turn = Turn(FakeTurns(pauses=pauses))
        self.output = Output(self.turn, None, LOST, 0, 0)
        self.syncs = FakeSyncs()
        self.confirms = Confirms(self.output, 7, self.syncs)
        self.seqno = 0
        self.untold: set[int] = set()
        self.decided: dict[int, bool] = {}  # to be told: True for ack
        self.owing: dict[int, set[str | int]] = {}  # not decided: the queues ("0", "1", ...) and epochs
        self.lost: set[int] = set()
        self.waiters: dict[int, ConfirmWaiter] = {}
        self.acked = 0

    def publish(self, queues: int, syncing: bool) -> None:
        """A publish with so many WAITING queues, and a SYNCING one."""
        self.seqno += 1
        self.untold.add(self.seqno)
        owing: set[str | int] = {str(number) for number in range(queues)}
        if syncing:
            owing.add(self.syncs.epoch)
        if owing:
            self.owing[self.seqno] = owing
        else:
            self._decided(self.seqno)
        if queues:
            self.waiters[self.seqno] = self.confirms.publish_waiting(queues, syncing)
        elif syncing:
            self.confirms.publish_syncing()
        else:
            self.confirms.publish_confirmed()

    def reject(self) -> None:
        self.seqno += 1
        self.untold.add(self.seqno)
        self.decided[self.seqno] = False
        self.confirms.publish_rejected()

    def queue_decides(self, which: int, ok: bool) -> None:
        """One of the queues that a publish waits for says what has become of it."""
        open_seqnos = [seqno for seqno, owing in sorted(self.owing.items()) if any(isinstance(o, str) for o in owing)]
        if open_seqnos:
            seqno = open_seqnos[which % len(open_seqnos)]
            queue = next(owed for owed in self.owing[seqno] if isinstance(owed, str))
            self._owes_less(seqno, queue, ok)
            self.waiters[seqno].decided(ok)

    def epoch_settles(self, ok: bool) -> None:
        """The oldest epoch that is open."""
        if not self.syncs.begun:
            self.syncs.begin_if_due()
        epoch = self.syncs.begun[0]
        for seqno in [seqno for seqno, owing in self.owing.items() if epoch in owing]:
            self._owes_less(seqno, epoch, ok)
        self.syncs.settle(ok)

    def _owes_less(self, seqno: int, owed: str | int, ok: bool) -> None:
        self.owing[seqno].remove(owed)
        if not ok:
            self.lost.add(seqno)
        if not self.owing[seqno]:
            del self.owing[seqno]
            self._decided(seqno)

    def _decided(self, seqno: int) -> None:
        self.decided[seqno] = seqno not in self.lost
        self.acked += self.decided[seqno]

    def end_pauses(self) -> None:
        """So many ticks that no pause goes on."""
        for _ in range(LONGEST_PAUSE):
            self.turn.tick()

    def end_of_turn(self, *, paused: bool = False) -> None:
        """Everything that is decided is told, once, and nothing else; `paused`, only when there is enough of it."""
        self.confirms.send_confirms()
        self._read()
        if paused and self.owing and all(self.decided.values()):
            return  # some may be kept back, none need be
        assert not self.decided
        assert self.untold == set(self.owing)

    def returned(self) -> None:
        """A publish is about to come back: everything that is decided is told, pause or not."""
        self.confirms.tell_now()
        self._read()
        assert not self.decided
        assert self.untold == set(self.owing)

    def _read(self) -> None:
        for is_ack, tag, multiple in told(self.output.out.getvalue()):
            covered = {seqno for seqno in self.untold if seqno <= tag} if multiple else {tag}
            assert tag in covered and covered <= self.untold, "a confirm that tells nothing new"
            for seqno in covered:
                assert self.decided.pop(seqno) is is_ack
            self.untold -= covered
        self.output.out.truncate(0)

    def check(self) -> None:
        assert self.confirms.published == self.seqno
        assert self.confirms.confirmed == self.acked
        assert self.confirms.waiting_count() == len(self.owing)


ACTIONS = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("syncing"), st.integers(1, 5)),
    st.tuples(st.just("reject")),
    st.tuples(st.just("queue decides"), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("begin epoch")),
    st.tuples(st.just("epoch settles"), st.booleans()),
    st.tuples(st.just("returned")),
    st.tuples(st.just("end of turn")),
)


def act(account: Account, actions: list[tuple]) -> None:
    for what, *values in actions:
        if what == "publish":
            account.publish(*values)
        elif what == "syncing":
            for _ in range(values[0]):
                account.publish(0, True)
        elif what == "reject":
            account.reject()
        elif what == "queue decides":
            account.queue_decides(*values)
        elif what == "begin epoch":
            account.syncs.begin_if_due()
        elif what == "epoch settles":
            account.epoch_settles(*values)
        elif what == "returned":
            account.returned()
        elif what == "pause over":
            account.end_pauses()
            account.end_of_turn()
        elif what == "tick":
            account.turn.tick()
        else:
            account.end_of_turn(paused=account.pauses)
        account.check()


def decide_all(account: Account) -> None:
    account.end_pauses()
    account.end_of_turn()
    while account.syncs.waiters:
        account.epoch_settles(True)
    while account.owing:
        account.queue_decides(0, True)
    account.end_of_turn()
    account.check()
    assert not account.untold


@given(st.lists(ACTIONS, max_size=80))
def test_each_publish_is_told_once_and_rightly(actions: list[tuple]) -> None:
    account = Account()
    act(account, actions)
    decide_all(account)


@given(st.lists(st.one_of(ACTIONS, st.tuples(st.just("tick")), st.tuples(st.just("pause over"))), max_size=80))
def test_with_pauses_nothing_is_kept_back_beyond_one(actions: list[tuple]) -> None:
    account = Account(pauses=True)
    act(account, actions)
    decide_all(account)


def out(account: Account) -> list[tuple[bool, int, bool]]:
    account.confirms.send_confirms()
    frames = told(account.output.out.getvalue())
    account.output.out.truncate(0)
    return frames


def test_an_epoch_is_told_with_one_ack() -> None:
    account = Account()
    for _ in range(1000):
        account.publish(0, True)
    assert len(account.confirms._runs) == 1
    account.syncs.begin_if_due()
    for _ in range(500):
        account.publish(0, True)
    assert out(account) == []
    account.syncs.settle(True)
    assert out(account) == [(True, 1000, True)]
    account.syncs.begin_if_due()
    account.syncs.settle(True)
    assert out(account) == [(True, 1500, True)]


def test_confirms_before_a_return_do_not_wait_for_a_pause() -> None:
    account = Account(pauses=True)
    waiters = [account.confirms.publish_waiting(1, False) for _ in range(10)]
    waiters[1].decided(True)
    assert out(account) == [(True, 2, False)], "a pause begins"
    waiters[3].decided(True)
    assert out(account) == []
    account.confirms.tell_now()
    assert out(account) == [(True, 4, False)]
    account.confirms.tell_now()
    assert out(account) == [], "each is told once"


def test_a_lost_epoch_is_told_with_one_nack_for_those_side_by_side() -> None:
    account = Account()
    account.publish(0, False)
    for _ in range(3):
        account.publish(0, True)
    account.syncs.begin_if_due()
    account.publish(0, True)
    account.syncs.settle(False)
    assert out(account) == [(True, 1, False), (False, 4, True)]
    account.syncs.begin_if_due()
    account.syncs.settle(True)
    assert out(account) == [(True, 5, False)]


def test_what_needs_no_sync_does_not_wait_for_one() -> None:
    account = Account()
    account.publish(0, True)
    account.publish(0, False)
    account.publish(0, True)
    account.reject()
    assert sorted(out(account)) == [(False, 4, False), (True, 2, False)]
    account.syncs.begin_if_due()
    account.syncs.settle(False)
    assert out(account) == [(False, 1, False), (False, 3, False)]


def test_a_synced_publish_does_not_wait_for_one_before_it() -> None:
    account = Account()
    waiter = account.confirms.publish_waiting(1, False)
    account.publish(0, True)
    account.publish(0, True)
    account.syncs.begin_if_due()
    account.syncs.settle(True)
    assert out(account) == [(True, 2, False), (True, 3, False)]
    waiter.decided(True)
    assert out(account) == [(True, 1, False)]


def test_confirms_pause_while_less_than_half_of_the_window_could_be_told() -> None:
    account = Account(pauses=True)
    waiters = [account.confirms.publish_waiting(1, False) for _ in range(10)]
    waiters[1].decided(True)
    assert out(account) == [(True, 2, False)], "the first is told at once"
    waiters[3].decided(True)
    waiters[0].decided(True)
    assert out(account) == []
    account.turn.tick()
    assert out(account) == [(True, 1, False), (True, 4, False)]
    for at in (2, 5, 7):
        waiters[at].decided(True)
    assert out(account) == [], "three to tell, seven were outstanding lately"
    waiters[4].decided(True)
    assert out(account) == [(True, 6, True), (True, 8, False)], "enough to go on with: told in the pause"
    waiters[6].decided(False)
    assert out(account) == [(False, 7, False)], "a loss does not wait"
    account.turn.tick()
    assert out(account) == []
    waiters[8].decided(True)
    waiters[9].decided(True)
    assert out(account) == [(True, 10, True)], "nothing is open any more"


def decide_in_ticks(account: Account, ticks: int) -> None:
    """Two publishes that take so many ticks, each."""
    first, second, third = [account.confirms.publish_waiting(1, False) for _ in range(3)]
    first.decided(True)
    out(account)  # the pause begins, and the third publish is watched
    for _ in range(ticks):
        account.turn.tick()
    second.decided(True)
    third.decided(True)
    out(account)


def ticks_of_pause(account: Account) -> int:
    """Ticks for which what is decided is kept back."""
    account.end_pauses()
    waiters = [account.confirms.publish_waiting(1, False) for _ in range(100)]
    waiters[0].decided(True)
    out(account)
    waiters[1].decided(True)
    ticks = 0
    while not out(account):
        account.turn.tick()
        ticks += 1
    for waiter in waiters[2:]:
        waiter.decided(True)
    out(account)
    return ticks


@pytest.mark.parametrize(("took", "pause"), [(0, 1), (1, 1), (15, 1), (16, 2), (40, 5), (80, 10), (1000, 10)])
def test_a_pause_is_longer_where_publishes_take_long_to_be_decided(took: int, pause: int) -> None:
    account = Account(pauses=True)
    decide_in_ticks(account, took)
    assert ticks_of_pause(account) == pause


def test_a_channel_that_was_idle_has_not_taken_long() -> None:
    account = Account(pauses=True)
    decide_in_ticks(account, 1)
    for _ in range(1000):
        account.turn.tick()  # others pause
    assert ticks_of_pause(account) == 1


def test_the_window_of_a_publisher_that_leaves_fewer_outstanding_is_soon_seen_to_be_smaller() -> None:
    account = Account(pauses=True)
    for waiter in [account.confirms.publish_waiting(1, False) for _ in range(200)]:
        waiter.decided(True)
        out(account)
    account.end_pauses()

    def told_in_pause() -> bool:
        first, second, third, fourth = [account.confirms.publish_waiting(1, False) for _ in range(4)]
        first.decided(True)
        out(account)
        second.decided(True)
        third.decided(True)
        told_early = bool(out(account))
        account.end_pauses()
        out(account)
        fourth.decided(True)
        out(account)
        account.end_pauses()
        return told_early

    told_early = [told_in_pause() for _ in range(40)]
    assert not told_early[0]
    assert told_early[-1]
    assert told_early == sorted(told_early)


def test_nothing_is_kept_of_publishes_that_were_told_while_an_earlier_one_is_open() -> None:
    account = Account()
    first = account.confirms.publish_waiting(1, False)
    for _ in range(10):
        for waiter in [account.confirms.publish_waiting(1, False) for _ in range(100)]:
            waiter.decided(True)
        assert len(out(account)) == 100
        assert len(account.confirms._open) < 200
    first.decided(True)
    assert out(account) == [(True, 1, False)]
    account.publish(0, False)
    assert out(account) == [(True, 1002, False)]


def test_a_publish_to_two_queues_waits_for_both() -> None:
    account = Account()
    waiter = account.confirms.publish_waiting(2, False)
    waiter.decided(True)
    assert out(account) == []
    waiter.decided(False)
    assert out(account) == [(False, 1, False)]


def test_a_publish_may_wait_for_a_queue_and_for_the_disk() -> None:
    account = Account()
    waiter = account.confirms.publish_waiting(1, True)
    waiter.decided(True)
    assert out(account) == []
    account.syncs.begin_if_due()
    account.syncs.settle(True)
    assert out(account) == [(True, 1, False)]


def test_nothing_is_told_after_close() -> None:
    account = Account()
    account.publish(0, True)
    account.confirms.publish_waiting(1, True)
    account.confirms.close()
    account.syncs.begin_if_due()
    account.syncs.settle(True)
    assert out(account) == []
    assert account.confirms.confirmed == 0
