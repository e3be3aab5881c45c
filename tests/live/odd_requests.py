"""Requests that HTTP does not allow, but that servers accept or reject, to real servers behind tokometer.

Each case sends one odd request, then chats on the same connection. Every chat that the server serves must be counted once, with
its tokens."""

import json
import socket

import names
from process import Tokometer, start_llama_server, until
from targets import BODY
from uvicorn_app import PARSERS, start_uvicorn

CHATS = 3
HEAD = b"GET /health HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /health HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
CONTENT = json.dumps(BODY).encode()
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(CONTENT), CONTENT)

TWO_REQUESTS = "HTTP/2 preface and a request"

CASES = {
    "ordinary": HEAD + b"\r\n",
    "large headers": HEAD + b"x: " + b"a" * 70000 + b"\r\n\r\n",
    "600 fields": HEAD + b"".join(b"x-%d: 1\r\n" % number for number in range(600)) + b"\r\n",
    "folded line": HEAD + b"x: a\r\n b\r\n\r\n",
    "length and chunks": POST + b"content-length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "two lengths": POST + b"content-length: 0\r\ncontent-length: 0\r\n\r\n",
    "identity coding": POST + b"transfer-encoding: identity\r\ncontent-length: 0\r\n\r\n",
    "chunked twice": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "chunk with bare LF": POST + CHUNKED + b"\r\n0\n\r\n",
    "chunk extensions": POST + CHUNKED + b"\r\n1;" + b"a=b;" * 500 + b"\r\nx\r\n0\r\n\r\n",
    "trailers": POST + CHUNKED + b"trailer: a\r\n\r\n0\r\n" + b"a: b\r\n" * 50 + b"\r\n",
    "control character": HEAD + b"x: a\x01b\r\n\r\n",
    "odd name": HEAD + b"x(y: 1\r\n\r\n",
    "space before colon": HEAD + b"x : 1\r\n\r\n",
    "signed length": POST + b"content-length: +0\r\n\r\n",
    "expectation": POST + b"expect: 100-continue\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.0 with keep-alive": HEAD.replace(b"1.1", b"1.0") + b"connection: keep-alive\r\n\r\n",
    "HTTP/1.0 with chunks": POST.replace(b"1.1", b"1.0") + b"connection: keep-alive\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    TWO_REQUESTS: b"PRI * HTTP/2.0\r\n\r\n" + HEAD + b"\r\n",
    "part of a TLS handshake": b"\x16\x03\x01\x00\x05hello\r\n\r\n",
    "unknown upgrade": HEAD + b"connection: upgrade\r\nupgrade: foo\r\n\r\n",
    "h2c upgrade": HEAD + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n",
    "OPTIONS *": HEAD.replace(b"GET /health", b"OPTIONS *") + b"\r\n",
    "CONNECT": b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    "lower-case method": HEAD.replace(b"GET", b"get") + b"\r\n",
    "two spaces": HEAD.replace(b" ", b"  ", 1) + b"\r\n",
    "empty lines": b"\r\n\r\n" + HEAD + b"\r\n",
    "bare LF": HEAD.replace(b"\r\n", b"\n") + b"\n",
}


def _response(connection, data):
    """Status and body of the response that begins with `data`, and the bytes after it; None if it ends with the
    connection."""
    while True:
        head, end, body = data.partition(b"\r\n\r\n")
        if end:
            status = int(head.split(b" ")[1])
            if status == 100:
                data = body
                continue
            length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), None)
            if length is None:
                return None
            if len(body) >= length:
                return status, body[:length], body[length:]
        received = connection.recv(65536)
        if not received:
            return None
        data += received


def _served(port, first):
    """Sends the bytes of one request, then chats; returns the tokens of each served chat."""
    tokens = []
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        try:
            connection.sendall(first)
            response = _response(connection, b"")
            while response and len(tokens) < CHATS:
                connection.sendall(CHAT)
                response = _response(connection, response[2])
                if response and response[0] == 200 and b"usage" in response[1]:
                    tokens.append(json.loads(response[1])["usage"]["completion_tokens"])
            # The server may have read two requests in the first bytes.
            connection.shutdown(socket.SHUT_WR)
            while response:
                response = _response(connection, response[2])
                if response and b"usage" in response[1]:
                    tokens.append(json.loads(response[1])["usage"]["completion_tokens"])
        except OSError:
            pass
    return tokens


def _compare(server):
    """Checks the counts of each case, and returns the names of the cases after which chats were served."""
    names_of_served, unobserved = [], 0
    with Tokometer(server.port) as relay:
        total, chats = 0, 0
        for name, first in CASES.items():
            tokens = _served(relay.port, first)
            if name == TWO_REQUESTS and tokens:
                # It is not known which of the responses belongs to which request, so some chats may be unobserved.
                chats += len(tokens)
                until(lambda: len(_counted(relay)) + _unobserved(relay) - unobserved >= chats, name, 5)
                total, chats = relay.total(names.OUTPUT_TOKENS), len(_counted(relay))
            else:
                total, chats = total + sum(tokens), chats + len(tokens)
                until(
                    lambda: relay.total(names.OUTPUT_TOKENS) >= total,
                    lambda: f"{name}: {len(tokens)} chats served, {relay.total(names.OUTPUT_TOKENS)} tokens of {total}",
                    5,
                )
                assert relay.total(names.OUTPUT_TOKENS) == total, name
            unobserved = _unobserved(relay)
            if tokens:
                names_of_served.append(name)
        assert len(_counted(relay)) == chats, (len(_counted(relay)), chats)
    print(f"    chats served after {len(names_of_served)} of {len(CASES)} requests: {', '.join(names_of_served)}")
    return names_of_served


def _unobserved(relay):
    return sum(record["outcome"] == "unobserved" for record in relay.records())


def _counted(relay):
    return [record for record in relay.records() if record["output_tokens"]]


def chats_after_odd_requests_to_uvicorn_are_counted():
    for parser in PARSERS:
        with start_uvicorn(parser) as server:
            assert "ordinary" in _compare(server)


def chats_after_odd_requests_to_llama_server_are_counted():
    with start_llama_server() as server:
        assert "ordinary" in _compare(server)
