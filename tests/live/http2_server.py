"""A small HTTP/2 server with prior knowledge, based on the `h2` package: `python http2_server.py PORT`.

It responds to POST /v1/chat/completions with a stream of events, or with JSON if the body contains `"stream": false`, and to
any other request with a few bytes. One thread per connection.
"""

import json
import socket
import sys
import threading

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

TOKENS = 5
PROMPT_TOKENS = 3


def event_stream():
    """A stream of TOKENS tokens."""
    delta = {"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}}]}
    finish = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS}}
    payloads = [json.dumps(event) for event in [delta] * TOKENS + [finish, usage]] + ["[DONE]"]
    return "".join(f"data: {event}\n\n" for event in payloads).encode()


def json_response():
    """The same response as one JSON document."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "a" * TOKENS}, "finish_reason": "stop"}
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS}
    return json.dumps({"id": "c", "choices": [choice], "usage": usage}).encode()


class Connection:
    def __init__(self, sock):
        self.sock = sock
        self.h2 = h2.connection.H2Connection(config=h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.paths, self.bodies, self.waiting = {}, {}, {}

    def run(self):
        self.h2.initiate_connection()
        self.h2.update_settings({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 128})
        self.sock.sendall(self.h2.data_to_send())
        with self.sock:
            while data := self.sock.recv(65536):
                try:
                    for event in self.h2.receive_data(data):
                        self.handle(event)
                except h2.exceptions.ProtocolError:
                    self.sock.sendall(self.h2.data_to_send())
                    return self.close()
                for stream in list(self.waiting):
                    self.send(stream)
                self.sock.sendall(self.h2.data_to_send())

    def close(self):
        """Closes in a way that lets the client read the last frames: data that it still sends would cause a reset."""
        self.sock.shutdown(socket.SHUT_WR)
        while self.sock.recv(65536):
            pass

    def handle(self, event):
        if isinstance(event, h2.events.RequestReceived):
            self.paths[event.stream_id] = dict(event.headers).get(":path", "")
            self.bodies[event.stream_id] = b""
        elif isinstance(event, h2.events.DataReceived):
            self.bodies[event.stream_id] += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.respond(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.waiting.pop(event.stream_id, None)

    def respond(self, stream):
        path, body = self.paths.pop(stream), self.bodies.pop(stream)
        kind, response = "text/plain", b"hello"
        if path == "/v1/chat/completions":
            streams = json.loads(body).get("stream", False)
            kind, response = ("text/event-stream", event_stream()) if streams else ("application/json", json_response())
        self.h2.send_headers(stream, [(":status", "200"), ("content-type", kind), ("x-path", path)])
        self.waiting[stream] = response
        self.send(stream)

    def send(self, stream):
        """Sends as much as the windows allow; one event at a time, to produce many frames."""
        while stream in self.waiting:
            data = self.waiting[stream]
            size = min(len(data), 60, self.h2.local_flow_control_window(stream))
            if size <= 0 and data:
                return
            last = size == len(data)
            self.h2.send_data(stream, data[:size], end_stream=last)
            if last:
                del self.waiting[stream]
            else:
                self.waiting[stream] = data[size:]


def main(port):
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=Connection(sock).run, daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]))
