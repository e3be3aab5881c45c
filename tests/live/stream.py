"""A plain client: many concurrent streams, each of which can be slow, misbehave or disconnect."""

import asyncio
import json
import socket

import names


class Stream:
    """One request on a new connection, with the response read event by event."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(
        cls, port, *, model="sim", prompt="Say hello.", tokens=20, fault=None, stream=True, continuous_usage=False, headers=None,
        receive_buffer=None, host="127.0.0.1",
    ):
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
            # The limit is small, so that unread data stays in the kernel and blocks the sender.
            reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
        except BaseException:
            sock.close()
            raise
        body = {"model": model, "stream": stream, "max_tokens": tokens, "ignore_eos": True}
        body["messages"] = [{"role": "user", "content": prompt}]
        if stream:
            body["stream_options"] = {"include_usage": True} | ({"continuous_usage_stats": True} if continuous_usage else {})
        body = json.dumps(body).encode()
        request_headers = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n"
        request_headers += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        request_headers += f"{names.SIM_FAULT}: {fault}\r\n" if fault else ""
        request_headers += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        writer.write(request_headers.encode() + b"\r\n" + body)
        await writer.drain()
        return cls(reader, writer)

    async def read_events(self, count):
        """Reads this many events; returns whether they arrived before the end."""
        received = b""
        while received.count(b"data: ") < count:
            try:
                chunk = await self.reader.read(4096)
            except ConnectionError:
                return False
            if not chunk:
                return False
            received += chunk
        return True

    async def read_rest(self):
        """Reads until the end of the connection, orderly or not."""
        chunks = []
        while True:
            try:
                chunk = await self.reader.read(65536)
            except ConnectionError:
                return b"".join(chunks)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)

    def abort(self):
        """Closes without reading the rest: unread bytes cause a reset."""
        self.writer.transport.abort()

    async def close(self):
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


async def send_request(port, **request):
    """One request from start to end; returns the received bytes, or b"" if the connection was refused."""
    try:
        stream = await Stream.open(port, **request)
    except OSError:
        return b""
    try:
        return await stream.read_rest()
    finally:
        await stream.close()


def complete(response):
    """True for a stream that ended with its end marker."""
    return response.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in response and response.endswith(b"0\r\n\r\n")
