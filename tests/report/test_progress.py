"""How training goes: the line of progress, and the one on a terminal."""
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios

import pytest
from helpers import ENVIRONMENT
from told import flags, log_lines


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full disk to write to")
def test_a_line_on_the_terminal_shows_how_it_goes_and_an_output_that_cannot_be_written_ends_nothing(folder):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    command = [sys.executable, "-m", "lmplay.train", *flags("--batch-size", "2")]
    with open("/dev/full", "w") as full, subprocess.Popen(command, stdout=full, stderr=theirs, env=ENVIRONMENT) as process:
        os.close(theirs)
        said = b""
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    said += os.read(ours, 4096)
                except OSError:  # the other end is closed
                    break
        process.wait()
    assert process.returncode == 0
    shown = said.decode()
    assert re.search(r"one \d+%\|.*\| \d+/27 samples, loss \d\.\d{3}, .*tokens/s", shown)
    assert re.search(r"two \d+%\|.*\| 40/40 samples", shown)
    assert any(line.startswith("plan complete") for line in log_lines(folder))
