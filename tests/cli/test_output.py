from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mlx_tessl.cli as cli
from mlx_tessl.cli._output import write_output
from mlx_tessl.encoders.files import atomic_write


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "result.npy"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with atomic_write(path) as file:
            file.write(b"half of the new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["result.npy"]


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "result.npy"
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("asking", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_is_asked_to_end_cleans_up(asking: signal.Signals, tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
import mlx_tessl.cli as cli
from mlx_tessl.cli._output import write_output

def half(file):
    file.write(b"half")
    file.flush()
    assert len(os.listdir({str(tmp_path)!r})) == 1
    os.kill(os.getpid(), {int(asking)})
    signal.pause()

write_output(Path({str(tmp_path / "result.npy")!r}), half, "a result")
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 128 + asking, result
    assert result.stderr == ""
    assert os.listdir(tmp_path) == []


def test_signals_are_as_they_were(tmp_path: Path) -> None:
    """Handled only while a file is written, and not when whoever started us ignores them, as nohup does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        during = []
        write_output(
            tmp_path / "x", lambda file: during.extend(map(signal.getsignal, (signal.SIGHUP, signal.SIGTERM))), "x"
        )
        assert during[0] is signal.SIG_IGN
        assert callable(during[1])
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_while_commands_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, package: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_module", interrupted)
    assert cli.main(["doctor"]) == 130
