"""A shell on a user's machine: kubectl, helm and tokometer on PATH, and the repository's charts in the directory."""

import shlex
import subprocess
import time
from pathlib import Path

from documents import ROOT
from process import BINARY, Process, until


class Shell:
    """Runs commands as written in the documentation, in the namespace of the user's context. `with` stops the port-forwards."""

    def __init__(self, node, namespace, directory, log=False):
        self.node, self.namespace, self.directory, self.forwards = node, namespace, Path(directory), {}
        self.began = time.monotonic() if log else None
        programs = self.directory / "bin"
        programs.mkdir()
        (programs / "tokometer").symlink_to(BINARY)
        (self.directory / "charts").symlink_to(ROOT / "charts")
        kubeconfig = self.directory / "kubeconfig"
        kubeconfig.write_bytes(Path(node.environment["KUBECONFIG"]).read_bytes())
        self.environment = node.environment | {"PATH": f"{programs}:{node.environment['PATH']}", "KUBECONFIG": str(kubeconfig)}
        assert self.run(f"kubectl config set-context --current --namespace {namespace}").returncode == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.forwards.values():
            process.kill()
        self.forwards = {}

    def run(self, command, seconds=240):
        """Runs a command line; a port-forward goes to the background once it forwards."""
        if command.endswith("&"):
            port = command.removesuffix("&").split()[-1].partition(":")[0]
            if port not in self.forwards:
                self.forwards[port] = Process("port-forward", shlex.split(command.removesuffix("&")), variables=self.environment)
                until(lambda: "Forwarding from" in self.forwards[port].output(), lambda: f"{command}: {self.forwards[port].output()}", 60)
            return subprocess.CompletedProcess(command, 0, "", "")
        return subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=seconds)

    def check_run(self, command, expected=""):
        """Runs a command that must succeed; logs the time and the first lines of the output, and returns it."""
        result = self.run(command)
        assert result.returncode == 0, f"{command}: {result.stderr or result.stdout}"
        output = result.stdout + result.stderr
        assert expected in output, f"{command}: no {expected!r} in {output}"
        self.note(f"$ {command}")
        for line in [line for line in output.splitlines() if not expected or expected in line][:4]:
            print(f"             {line[:200]}")
        return result.stdout

    def note(self, text):
        """Logs a line with the seconds since the start."""
        print(f"    {time.monotonic() - self.began:6.1f} s  {text}", flush=True)
