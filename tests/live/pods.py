"""Two network namespaces connected by a veth pair: one for a pod and one for its clients.

Needs root; the programs in the pod run without root privileges."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from process import BINARY, MODEL, Process, Skip, until

# The image's user, without capabilities and unable to gain any.
USER = 65532
UNPRIVILEGED = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
# Root without its capabilities.
ROOT_WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
# The base interpreter: the tests' own may be in a directory that other users cannot read.
PYTHON = sys._base_executable
POD_IP, CLIENT_IP = "10.231.7.2", "10.231.7.1"

# Sends requests repeatedly, each on a new connection, until the stop file exists; prints the statuses and the failures with
# their times.
_CLIENT = """
import http.client, json, os, sys, time
host, port, path, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
responses, failures = {}, []
while not os.path.exists(stop):
    began = time.time()
    try:
        connection = http.client.HTTPConnection(host, port, timeout=10)
        connection.request("GET", path, headers={"connection": "close"})
        response = connection.getresponse()
        responses[str(response.status)] = responses.get(str(response.status), 0) + 1
        response.read()
        connection.close()
    except OSError as error:
        failures.append([began, repr(error)])
print(json.dumps({"responses": responses, "failures": failures}))
"""

# A server that shares its port (SO_REUSEPORT), as vLLM does with several API servers.
_PORT_SHARING_SERVER = """
import http.server, socketserver
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    allow_reuse_port, daemon_threads, request_queue_size = True, True, 256
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = str(self.client_address[0]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
Server(("0.0.0.0", 8000), Handler).serve_forever()
"""


def _ip(*arguments, check=True):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if check and done.returncode != 0:
        raise Skip(f"no network namespaces here: ip {' '.join(arguments)}: {done.stderr.strip()}")


class Pod:
    """The namespaces and the programs in them. `with` stops and removes them."""

    def __enter__(self):
        if os.geteuid() != 0:
            raise Skip("network namespaces need root")
        for program in ("ip", "setpriv"):
            if not shutil.which(program):
                raise Skip(f"no {program}")
        self.stack = contextlib.ExitStack()
        self.pod, self.client = f"tokometer-pod-{os.getpid()}", f"tokometer-client-{os.getpid()}"
        try:
            for name in (self.pod, self.client):
                _ip("netns", "add", name)
                self.stack.callback(_ip, "netns", "del", name, check=False)
                _ip("-n", name, "link", "set", "lo", "up")
            _ip("link", "add", "eth0", "netns", self.pod, "type", "veth", "peer", "name", "eth0", "netns", self.client)
            for name, address in ((self.pod, POD_IP), (self.client, CLIENT_IP)):
                _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
            self.directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="tokometer-pod-")))
            self.directory.chmod(0o755)
            # Like a pod's volumes: writable for the user of its containers.
            self.logs = self.directory / "logs"
            self.logs.mkdir()
            self.logs.chmod(0o777)
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *error):
        self.stack.__exit__(*error)

    def _in(self, namespace, argv, privileges=()):
        return ["ip", "netns", "exec", namespace, *privileges, *argv]

    def start(self, name, argv, privileges=UNPRIVILEGED):
        """Starts a program in the pod; it is stopped with the pod."""
        process = Process(name, self._in(self.pod, argv, privileges))
        self.stack.enter_context(process)
        return process

    def run(self, argv):
        return subprocess.run(self._in(self.pod, argv), capture_output=True, text=True, timeout=60)

    def fetch(self, path="/health", *, port=8000, host=POD_IP, body=None, from_pod=False):
        """Status and body for a client outside the pod, or with `from_pod` inside it; (0, "") without a response."""
        code = (
            "import sys, urllib.request, urllib.error\n"
            "data = sys.argv[2].encode() or None\n"
            "request = urllib.request.Request(sys.argv[1], data, {'content-type': 'application/json'} if data else {})\n"
            "try:\n    a = urllib.request.urlopen(request, timeout=20); print(a.status); print(a.read().decode())\n"
            "except urllib.error.HTTPError as e: print(e.code); print(e.read().decode())\n"
            "except OSError: print(0)\n"
        )
        argv = [sys.executable, "-c", code, f"http://{host}:{port}{path}", json.dumps(body) if body else ""]
        done = subprocess.run(self._in(self.pod if from_pod else self.client, argv), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        status, _, text = done.stdout.partition("\n")
        return int(status), text.strip()

    def chat(self, **options):
        request = {"model": "sim", "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": "Say hello."}]}
        return self.fetch("/v1/chat/completions", body=request, **options)

    def check_response(self, **options):
        until(lambda: self.fetch(**options)[0] == 200, lambda: f"the pod responds {options}", 60)

    def start_client(self, path="/"):
        """Starts a client that sends requests repeatedly; `stop_client` stops it."""
        stop = self.directory / "stop"
        argv = self._in(self.client, [sys.executable, "-c", _CLIENT, POD_IP, "8000", path, str(stop)])
        return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

    def stop_client(self, client):
        (self.directory / "stop").touch()
        result = json.loads(client.communicate(timeout=60)[0])
        (self.directory / "stop").unlink()
        return result

    def start_port_sharing_server(self):
        return self.start("server", [PYTHON, "-c", _PORT_SHARING_SERVER])

    def llama_server(self, host):
        if not shutil.which("llama-server"):
            raise Skip("no llama-server")
        model = self.directory / "model.gguf"
        if not model.exists():
            shutil.copy(MODEL, model)
        argv = ["llama-server", "-m", str(model), "--host", host, "--port", "8000", "-c", "8192", "-np", "2", "-t", "1", "--jinja", "--no-webui"]
        # Runs as root, because the files of llama-server may be in a directory that only root can read.
        return self.start("llama-server", argv, privileges=())

    def sidecar(self, arguments, privileges=UNPRIVILEGED):
        """Starts tokometer with the arguments that `inject` sets; `$(POD_IPS)` is expanded as by the kubelet."""
        arguments = [argument.replace("$(POD_IPS)", POD_IP) for argument in arguments]
        log = self.logs / "access.jsonl"
        log_options = ["--set=access_log.enabled=true", f"--set=access_log.path={log}", "--set=access_log.format=json"]
        return self.program("tokometer", [*arguments, *log_options], privileges)

    def program(self, name, arguments, privileges=UNPRIVILEGED):
        """Starts tokometer's binary from a path that every user can read."""
        binary = self.directory / "tokometer"
        if not binary.exists():
            shutil.copy(BINARY, binary)
            binary.chmod(0o755)
        return self.start(name, [str(binary), *arguments], privileges)

    def nft(self):
        """The path of nft: copied to where every user can read it, if it is in a directory that only root can read."""
        program = shutil.which("nft")
        if not program:
            raise Skip("no nft (tests/components/fetch.sh nft)")
        files = Path(program).parent.parent / "nft"
        if files.is_dir():
            shutil.copytree(files, self.directory / "nft", dirs_exist_ok=True)
            (self.directory / "bin").mkdir(exist_ok=True)
            program = shutil.copy(program, self.directory / "bin")
        return str(program)

    def records(self):
        log = self.logs / "access.jsonl"
        lines = log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []
        return [json.loads(line) for line in lines]


def injected(mode, image, *more, port=8000):
    """The pod spec that `tokometer inject` produces for a pod of this image that listens on this port."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    pod["spec"] = {"containers": [{"name": "server", "image": image, "args": ["a"], "ports": [{"containerPort": port}]}]}
    argv = [BINARY, "inject", "--image", "i", "--mode", mode, *more]
    done = subprocess.run(argv, input=json.dumps(pod), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["spec"]
