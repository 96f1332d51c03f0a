"""Commands that are stopped by a signal say how to go on."""

import os
import signal

import pytest

from torch_linformer.cli.resumable import saying_how_to_go_on


@pytest.fixture(autouse=True)
def linformer_predict(monkeypatch):
    monkeypatch.setattr("sys.argv", ["linformer", "predict", "model", "my posts"])


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_block_with_the_command_that_goes_on(signum, capsys):
    before = signal.getsignal(signum)
    with pytest.raises(SystemExit) as exit_, saying_how_to_go_on(False):
        os.kill(os.getpid(), signum)
    assert exit_.value.code == 128 + signum
    assert capsys.readouterr().err == "stopped; to go on:  linformer predict model 'my posts' --resume\n"
    assert signal.getsignal(signum) is before


def test_a_signal_that_is_ignored_stays_so():
    """As nohup does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with saying_how_to_go_on(False):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
