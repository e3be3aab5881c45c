"""A collector that stores what it receives."""

import http.server
import threading
import time


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.pushes.append((time.monotonic(), self.path, body))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Collector:
    """Accepts every push over HTTP at a local address; `pushes` contains (time, path, body) of each."""

    def __init__(self, host="127.0.0.1", port=0):
        self.address = host, port

    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(self.address, _Handler)
        self.server.daemon_threads = True
        self.server.pushes = self.pushes = []
        self.url = f"http://{self.address[0]}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def traces(self):
        """The bodies of trace pushes."""
        return [body for _, path, body in self.pushes if path == "/v1/traces"]

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
