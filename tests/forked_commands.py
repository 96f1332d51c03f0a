"""Processes that begin as copies of one that has imported what they need: in 0.1 s instead of 5.

What they do from then on, with their arguments, streams and signals, is what ``python -m torch_linformer.cli`` does;
or, where the first argument is ``-c``, what ``python -c`` does.
"""

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys

COMMAND = (
    "torch_linformer.training.train",
    "torch_linformer.adaptation.adaptation",
    "torch_linformer.inference.answer_files",
    "torch_linformer.inference.generate",
    "torch_linformer.serving.server",
)
TRANSFORMERS = ("torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto")  # and nothing of ours


class CommandServer:
    """The process that is copied, once it has imported some modules."""

    def __init__(self, imported, environment):
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno()), *imported]
        nothing = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=environment, stdin=nothing, stdout=nothing
        )
        theirs.close()

    def close(self):
        self.connection.close()
        self.process.wait()


class ForkedCommand(subprocess.Popen):
    """A copy that runs the command, or code; the server is its grandparent, whose child tells its status."""

    def __init__(self, server, arguments, **options):
        self._server = server
        super().__init__(arguments, **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others):
        _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_ = others
        streams = [own if fd == -1 else fd for own, fd in enumerate((p2cread, c2pwrite, errwrite))]
        request = {
            "arguments": args,
            "cwd": str(cwd or os.getcwd()),
            "environment": env or dict(os.environ),
            "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        ours, theirs = os.pipe()
        socket.send_fds(self._server.connection, [json.dumps(request).encode()], [*streams, theirs])
        os.close(theirs)
        self._status = os.fdopen(ours, "rb", buffering=0)
        self.pid = int(self._status.readline())
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, flags):
        if flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        with self._status:
            return self.pid, int(self._status.readline())

    def _internal_poll(self, *args, **options):
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


def serve(connection, imported):
    """Fork a copy for each request until nobody is left to ask."""
    for name in imported:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, streams, *_ = socket.recv_fds(connection, 2**20, 4)
        if not request:
            return
        if os.fork() == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run_and_tell(json.loads(request), *streams)
        for stream in streams:
            os.close(stream)


def run_and_tell(request, stdin, stdout, stderr, status):
    """Write the number of a copy's process and, when it has ended, its status."""
    pid = os.fork()
    if pid:
        for stream in (stdin, stdout, stderr):
            os.close(stream)
        os.write(status, b"%d\n" % pid)
        os.write(status, b"%d\n" % os.waitpid(pid, 0)[1])
        os._exit(0)
    os.close(status)
    for own, stream in enumerate((stdin, stdout, stderr)):
        os.dup2(stream, own)
        os.close(stream)
    os.chdir(request["cwd"])
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["descriptors"]))
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["arguments"][0] == "-c":
        sys.argv[:] = ["-c", *request["arguments"][2:]]
        exec(request["arguments"][1], {"__name__": "__main__"})
        raise SystemExit
    sys.argv[1:] = request["arguments"]
    from torch_linformer.cli import main

    main()  # raises SystemExit


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        serve(asked, sys.argv[2:])
