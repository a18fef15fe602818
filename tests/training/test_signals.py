"""Being asked to stop."""

import os
import signal
import threading

import pytest

from stillbox.training.signals import RunInterrupted, StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_becomes_a_request_and_the_old_handler_comes_back(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), number)
        assert stop.signal == number
    assert signal.getsignal(number) is before


def test_a_second_interrupt_does_not_wait_for_the_step():
    with StopRequest(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_outside_the_main_thread_there_is_no_request_and_no_error():
    seen = []

    def enter():
        with StopRequest() as stop:
            seen.append(stop.signal)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [None]


def test_a_signal_ends_at_once_what_is_not_worth_finishing():
    with StopRequest() as stop:
        with pytest.raises(RunInterrupted) as ended, stop.ends("evaluating"):
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the signal came before")
        assert ended.value.number == signal.SIGTERM
        assert str(ended.value) == "stopped by SIGTERM while evaluating; run again to go on"
        # One that came before is not forgotten.
        with pytest.raises(RunInterrupted), stop.ends("evaluating"):
            raise AssertionError("the signal came before")


def test_after_what_a_signal_ends_it_is_a_request_again():
    with StopRequest() as stop:
        with stop.ends("evaluating"):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
