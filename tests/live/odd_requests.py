"""Requests that HTTP does not allow, but that servers accept or reject: uvicorn behind tokometer, with both of its parsers.

Each case sends one odd request, then chats on the same connection. Every chat that uvicorn serves must be counted once.
"""
import json
import socket

CHATS = 5
HEAD = b"GET /health HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /health HTTP/1.1\r\nhost: x\r\n"
BODY = b'{"model":"m","messages":[]}'
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-tenant: acme\r\ncontent-type: application/json\r\n" \
    b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)
RESPONSE = json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion", "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17},
})

# Application for `uvicorn --http httptools` and `uvicorn --http h11`.
APPLICATION = f"""
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def chat(request):
    await request.body()
    return Response({RESPONSE!r}, media_type="application/json")

async def health(request):
    await request.body()
    return Response("", media_type="text/plain")

app = Starlette(routes=[
    Route("/v1/chat/completions", chat, methods=["POST"]),
    Route("/health", health, methods=["GET", "POST"]),
])
"""

CASES = {
    "ordinary": HEAD + b"\r\n",
    "large headers": HEAD + b"x: " + b"a" * 70000 + b"\r\n\r\n",
    "600 fields": HEAD + b"".join(b"x-%d: 1\r\n" % number for number in range(600)) + b"\r\n",
    "folded line": HEAD + b"x: a\r\n b\r\n\r\n",
    "length and chunks": POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "identity coding": POST + b"transfer-encoding: identity\r\ncontent-length: 0\r\n\r\n",
    "chunked twice": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk with bare LF": POST + b"transfer-encoding: chunked\r\n\r\n0\n\r\n",
    "control character": HEAD + b"x: a\x01b\r\n\r\n",
    "odd name": HEAD + b"x(y: 1\r\n\r\n",
    "space before colon": HEAD + b"x : 1\r\n\r\n",
    "signed length": POST + b"content-length: +0\r\n\r\n",
    "HTTP/1.0 with chunks": POST.replace(b"1.1", b"1.0") + b"connection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "lower-case method": HEAD.lower().replace(b"http/1.1", b"HTTP/1.1") + b"\r\n",
    "two spaces": HEAD.replace(b" ", b"  ", 1) + b"\r\n",
}


def response(connection):
    """Reads one response; returns its status, or None at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        received = connection.recv(65536)
        if not received:
            return None
        data += received
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        received = connection.recv(65536)
        if not received:
            return None
        body += received
    return int(head.split(b" ")[1])


def served(address, first):
    """Sends the bytes of one request, then chats; returns the number of chats with status 200."""
    count = 0
    with socket.create_connection(address, timeout=5) as connection:
        try:
            connection.sendall(first)
            status = response(connection)
            while status is not None and count < CHATS:
                connection.sendall(CHAT)
                status = response(connection)
                count += status == 200
        except OSError:
            pass
    return count
