"""A network namespace in which the documented ports are free. Needs no root if users may create namespaces."""

import contextlib
import socket
import subprocess

from process import Process, Skip


class Namespace:
    """`command_prefix` is the command prefix to run there; it is empty without namespaces, if the ports are free."""

    def __init__(self, ports):
        self._stack = contextlib.ExitStack()
        keeper = subprocess.Popen(
            ["unshare", "--map-root-user", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        self._stack.callback(keeper.communicate)
        if keeper.stdout.readline() == "up\n":
            self.command_prefix = ["nsenter", f"--target={keeper.pid}", "--user", "--net", "--preserve-credentials", "--"]
            return
        reason = keeper.communicate()[1].strip()
        self.command_prefix = []
        for port in ports:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("", port))
                except OSError:
                    raise Skip(f"port {port} is in use, and no network namespace can be created: {reason}") from None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stack.__exit__(*error)

    def start(self, name, argv):
        """Starts a program in the namespace; it is stopped with the namespace."""
        return self._stack.enter_context(Process(name, [*self.command_prefix, *argv]))
