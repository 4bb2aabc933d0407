"""Programs in processes of their own that need not import torch: they are forked from one that has (a third of the time of the tests was that import)."""
import array
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys


class Popen(subprocess.Popen):
    """`subprocess.Popen` of `python ARGUMENTS…`: `-m lmplay.train …` or `-c CODE …`. Signals, output and exit codes are those of the process."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                       p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others):
        self._status, theirs = os.pipe()
        message = json.dumps({"arguments": args, "cwd": str(cwd or os.getcwd()), "env": dict(os.environ if env is None else env)})
        fds = [theirs, c2pwrite if c2pwrite >= 0 else 1, errwrite if errwrite >= 0 else 2]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(_server())
            client.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
            client.sendall(message.encode())
        os.close(theirs)
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self.pid, self._child_created = int(_line(self._status)), True

    def _try_wait(self, wait_flags):
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        return self.pid, int(_line(self._status))

    def _internal_poll(self, *ignored, **_):
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._status)
        return self.returncode


if sys.platform != "linux":  # elsewhere each program starts by itself
    class Popen(subprocess.Popen):
        """`subprocess.Popen` of `python ARGUMENTS…`."""

        def __init__(self, arguments, **options):
            super().__init__([sys.executable, *arguments], **options)


def run(arguments, timeout=None, **options):
    """As `subprocess.run` with captured text."""
    with Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            output, complaints = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, output, complaints)


def _line(fd: int) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        found += os.read(fd, 1) or b"9\n"  # who should say it was killed
    return found


@functools.cache
def _server() -> str:
    """Start the process that has imported torch; it ends with this one."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(b"")  # an address of the kernel's choice
    listener.listen()
    ours, theirs = os.pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.Popen([sys.executable, "-c", f"import warm; warm.serve({listener.fileno()}, {ours})"], env=environment, pass_fds=[listener.fileno(), ours])
    os.close(ours)
    _server.kept = theirs
    return listener.getsockname()


def serve(listener: int, end: int) -> None:
    """Fork a process for each connection, until `end` is closed."""
    import lmplay.device.sharding
    import lmplay.engine.loop
    import lmplay.engine.opening
    import lmplay.train.__main__  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the tests
    server = socket.socket(fileno=listener)
    while end not in select.select([listener, end], [], [])[0]:
        with server.accept()[0] as connection:
            _, fds, *_ = socket.recv_fds(connection, 1, 3)
            message = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _watch(fds, json.loads(message))
        for fd in fds:
            os.close(fd)


def _watch(fds: list, message: dict) -> None:
    """Fork the program, say its number, wait for it, and say how it ended."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _become(fds, **message)
    for fd in (0, 1, 2):  # whoever reads the program's output sees its end
        os.close(fd)
    os.close(fds[1])
    os.close(fds[2])
    os.write(fds[0], b"%d\n" % pid)
    os.write(fds[0], b"%d\n" % os.waitpid(pid, 0)[1])
    os._exit(0)


def _become(fds: list, arguments: list, cwd: str, env: dict) -> None:
    """Be what `python ARGUMENTS` would be."""
    os.dup2(fds[1], 1)
    os.dup2(fds[2], 2)
    os.closerange(3, 256)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = ["", *env.get("PYTHONPATH", "").split(os.pathsep)]
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    kind, what, *sys.argv[1:] = arguments
    sys.argv[0] = kind
    code = what if kind == "-c" else f"import sys; from {what}.__main__ import main; sys.exit(main())"
    status = 1
    try:
        exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        import threading

        threading._shutdown()
        sys.stdout.flush()
        os._exit(status)
