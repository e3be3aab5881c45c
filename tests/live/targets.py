"""Targets of a chat request, written in unusual ways, and a comparison of their requests with the records.

What a server accepts is found by sending the same request to it directly."""

import json
import socket

import names
from process import Tokometer

CHAT = "/v1/chat/completions"
ENCODED = "/v1/chat/%63ompletions"
BODY = {"model": "tiny", "max_tokens": 5, "temperature": 0, "prompt": "Count.", "messages": [{"role": "user", "content": "Count."}]}
# Targets with CHAT as their path, in the reading of at least one server; then others, which no server takes for it.
TARGETS = [
    CHAT,
    ENCODED,
    "/v1%2Fchat/completions",
    "/v1%2fchat%2fcompletions",
    "/%76%31/%63hat/completion%73",
    "/v1/chat/%u0063ompletions",
    "/v1/chat/completions%0a",
    "/v1/chat/completions?api-version=1",
    "/v1/chat/%63ompletions?x=%zz",
    "/v1/chat/completions#fragment",
    "http://server:1/v1/chat/completions",
    "HTTP://user@server/v1/chat/%63ompletions",
    "ws://server/v1/chat/completions",
    "http:/v1/chat/completions",
    "http:///v1/chat/completions",
    "/v1/chat/completions/",
    "/v1/chat/completions%2F",
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/v1/./chat/completions",
    "/v1/x/../chat/completions",
    "/v1/%2e%2e/v1/chat/completions",
    "/v1/chat/%2563ompletions",
    "/v1/chat/completions%00",
    "/v1/chat/completions%20",
    "/v1/chat/completions%3Fx",
    "/v1/chat/completions;a=b",
    "/v1/chat/completions%",
    "/v1/chat/completion%7",
    "/v1/CHAT/completions",
    "/v1/chat/completions/%c0%af",
    "/?/v1/chat/completions",
    "/unknown",
]


def exchange(port, target, body, method="POST"):
    """Status, headers and body of the response to one request on its own connection."""
    content = json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\r\nHost: server\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(head.encode() + content)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    headers, _, response = received.partition(b"\r\n\r\n")
    return int(headers.split()[1]), headers.decode().lower(), response


def compare(server, targets, body=BODY, generated=None, **settings):
    """Sends each request directly and through tokometer, and compares the records with the responses. `generated` is the
    number of tokens of every generated response, if the response does not contain it. Returns the served targets."""
    with Tokometer(server.port, **settings) as relay:
        expected = []
        for target in targets:
            direct = exchange(server.port, target, body)
            proxied = exchange(relay.port, target, body)
            assert direct[0] == proxied[0], f"{target}: {direct[0]} directly, {proxied[0]} through tokometer"
            tokens = None
            if proxied[0] == 200:
                tokens = generated or json.loads(proxied[2])["usage"]["completion_tokens"]
            expected.append((target, proxied[0], tokens))
            relay.wait_for_records(len(expected))
        records = relay.records()
        for (target, status, tokens), record in zip(expected, records, strict=True):
            assert record["status"] == status, (target, record)
            if tokens:
                assert record["output_tokens"] == tokens, f"{target}: {tokens} tokens served, the record has {record}"
                assert record["operation"] != "other" and record["outcome"] == names.OK, (target, record)
            else:
                assert not record["output_tokens"], (target, record)
        total = sum(tokens or 0 for _, _, tokens in expected)
        assert relay.total(names.OUTPUT_TOKENS) == total, (relay.total(names.OUTPUT_TOKENS), total)
        assert relay.total(names.REQUESTS) == len(expected), relay.total(names.REQUESTS)
        served = [target for target, status, _ in expected if status == 200]
        print(f"    {len(expected)} requests, {len(served)} served, {total} tokens")
        return served
