"""WebSocket with third-party programs on both sides: the bytes are the same with and without tokometer for all kinds
of frames, the observer parses all of them, and every response of a realtime session has a correct record."""

import contextlib
import itertools
import json
import socket
import struct
import threading

import names
from process import Tokometer
from websockets.frames import Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.sync.client import connect
from websockets.sync.server import serve

PATH = "/v1/realtime"
TOKENS, PROMPT_TOKENS = 3, 38
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
NORMAL_CLOSURE = struct.pack("!H", 1000)


@contextlib.contextmanager
def _server(handler, **options):
    server = serve(handler, "127.0.0.1", 0, max_size=1 << 24, **options)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    server.port = server.socket.getsockname()[1]
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()


def _echo(session):
    for message in session:
        session.send(message)


def _headers_length(received):
    """Length of the request headers; None while they are incomplete."""
    end = received.find(b"\r\n\r\n")
    return None if end < 0 else end + 4


def _first_frame_length(received):
    """Length of the first frame; None while it is incomplete."""
    if len(received) < 2:
        return None
    size, start = received[1] & 127, 2
    if size > 125:
        start = 4 if size == 126 else 10
        size = int.from_bytes(received[2:start], "big")
    end = start + 4 * (received[1] >> 7) + size
    return end if len(received) >= end else None


def _echo_in_order(sock):
    """Echoes frame by frame, so that its output does not depend on how reads are split; the websockets package validates
    each frame and replies to it."""
    protocol = ServerProtocol(max_size=1 << 24)
    received, upgraded = b"", False
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while part := sock.recv(1 << 20):
            received += part
            while end := _first_frame_length(received) if upgraded else _headers_length(received):
                protocol.receive_data(received[:end])
                received = received[end:]
                for event in protocol.events_received():
                    if isinstance(event, Request):
                        protocol.send_response(protocol.accept(event))
                        upgraded = True
                    elif protocol.state.name == "OPEN" and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                        send = {Opcode.TEXT: protocol.send_text, Opcode.BINARY: protocol.send_binary}
                        send.get(event.opcode, protocol.send_continuation)(event.data, event.fin)
                for data in protocol.data_to_send():
                    sock.sendall(data) if data else sock.shutdown(socket.SHUT_WR)
            if protocol.close_expected():
                break
        # Reads the client's remaining bytes, so that the client receives a FIN and no reset.
        with contextlib.suppress(OSError):
            while sock.recv(1 << 20):
                pass


@contextlib.contextmanager
def _orderly_server():
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=_echo_in_order, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _frame(opcode, payload=b"", fin=True, reserved=0):
    """A client's frame (RFC 6455, section 5.2)."""
    length = len(payload)
    if length < 126:
        size = bytes([0x80 | length])
    elif length < 1 << 16:
        size = b"\xfe" + struct.pack("!H", length)
    else:
        size = b"\xff" + struct.pack("!Q", length)
    mask = b"\x37\xfa\x21\x3d"
    masked = bytes(byte ^ key for byte, key in zip(payload, itertools.cycle(mask)))
    return bytes([fin << 7 | reserved << 4 | opcode]) + size + mask + masked


def _cases():
    """Name and bytes of valid and invalid client input, in the order of the Autobahn suite's sections."""
    for kind, opcode in (("text", TEXT), ("binary", BINARY)):
        for size in (0, 1, 125, 126, 127, 128, 65535, 65536, 1 << 20):
            yield f"1 {kind} of {size}", _frame(opcode, b"*" * size)
    for size in (0, 4, 125, 126):
        yield f"2 ping of {size}", _frame(PING, b"p" * size) + _frame(TEXT, b"after")
    yield "2 unsolicited pong", _frame(PONG, b"x") + _frame(TEXT, b"after")
    yield "2 ten pings", b"".join(_frame(PING, bytes([n])) for n in range(10))
    for reserved in range(1, 8):
        yield f"3 reserved bits {reserved}", _frame(TEXT, b"a") + _frame(TEXT, b"b", reserved=reserved)
    for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15):
        yield f"4 reserved opcode {opcode}", _frame(TEXT, b"a") + _frame(opcode, b"b")
    fragments = [_frame(TEXT, b"one", fin=False), _frame(0, b"two", fin=False), _frame(0, b"three")]
    yield "5 fragments", b"".join(fragments)
    yield "5 fragments with pings between", _frame(PING, b"x").join(fragments)
    yield "5 a fragmented ping", _frame(PING, b"x", fin=False) + _frame(0, b"y")
    yield "5 a continuation without a message", _frame(0, b"x") + _frame(TEXT, b"y")
    yield "5 a message within a message", fragments[0] + _frame(TEXT, b"x")
    yield "6 letters cut by frames", _frame(TEXT, b"\xce\xba\xe1\xbd", fin=False) + _frame(0, b"\xb9\xcf\x83")
    yield "6 no text", _frame(TEXT, b"\xce\xba\xed\xa0\x80edited")
    for code in (1000, 1001, 1002, 1003, 1007, 1011, 3000, 4999):
        yield f"7 close {code}", _frame(CLOSE, struct.pack("!H", code) + b"bye")
    for code in (0, 999, 1004, 1005, 1006, 1016, 2999, 5000):
        yield f"7 close with invalid code {code}", _frame(CLOSE, struct.pack("!H", code))
    yield "7 an empty close", _frame(CLOSE)
    yield "7 a close of one byte", _frame(CLOSE, b"\x03")
    yield "7 a message after the close", _frame(CLOSE, NORMAL_CLOSURE) + _frame(TEXT, b"late")
    yield "7 no mask", b"\x81\x01a"


def _send_frames(port, frames, chunk_size):
    """All bytes that the server sends in reply to this input, sent `chunk_size` bytes at a time; without the Date header."""
    request_headers = f"GET {PATH} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    request_headers += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(request_headers.encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += sock.recv(65536)

        def send():
            # A server closes on invalid input while the rest is still being sent.
            with contextlib.suppress(OSError):
                for start in range(0, len(frames), chunk_size):
                    sock.sendall(frames[start : start + chunk_size])

        sender = threading.Thread(target=send)
        sender.start()
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(65536):
                received += data
        sender.join()
    headers, _, rest = received.partition(b"\r\n\r\n")
    return [line for line in headers.split(b"\r\n") if not line.startswith(b"Date:")], rest


def every_frame_type_passes_unmodified_and_is_parsed():
    cases = 0
    with _orderly_server() as port, Tokometer(port) as relay:
        for name, frames in _cases():
            # The server closes after the close frame, if not earlier.
            frames += _frame(CLOSE, NORMAL_CLOSURE)
            for chunk_size in (1, 7, 1 << 22):
                if len(frames) // chunk_size > 5000:
                    continue
                direct, relayed = _send_frames(port, frames, chunk_size), _send_frames(relay.port, frames, chunk_size)
                assert direct == relayed, f"{name}, {chunk_size} at a time\nwithout: {direct!r:.400}\nwith: {relayed!r:.400}"
                cases += 1
        relay.wait_for_records(cases)
        assert relay.total(names.DETACHED) == 0, f"{relay.total(names.DETACHED)} of {cases} were not parsed"
    print(f"    {cases} cases, the same with and without tokometer, all parsed")


def compressed_messages_pass_and_are_parsed():
    texts = [("word " * n + str(n)) for n in (0, 1, 10, 1000, 100_000)]

    def check_echo(port):
        with connect(f"ws://127.0.0.1:{port}{PATH}", compression="deflate", max_size=1 << 24) as session:
            for text in texts:
                session.send(text)
                assert session.recv() == text
                # Fragments of one compressed message.
                session.send(text[at : at + 997] for at in range(0, max(len(text), 1), 997))
                assert session.recv() == text
                session.send(text.encode())
                assert session.recv() == text.encode()
                assert session.ping().wait(30)
            assert session.protocol.extensions, "compression was not negotiated"

    with _server(_echo, compression="deflate") as server, Tokometer(server.port) as relay:
        check_echo(server.port)
        check_echo(relay.port)
        relay.wait_for_records(1)
        assert relay.total(names.DETACHED) == 0


def _transcribe(session):
    """A minimal vLLM /v1/realtime: each commit is followed by TOKENS deltas."""
    session.send(json.dumps({"type": "session.created", "id": "sess-1", "session": {"model": "voxtral"}}))
    for message in session:
        if json.loads(message)["type"] == "input_audio_buffer.commit":
            for _ in range(TOKENS):
                session.send(json.dumps({"type": "transcription.delta", "delta": "a"}))
            usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS, "total_tokens": PROMPT_TOKENS + TOKENS}
            session.send(json.dumps({"type": "transcription.done", "text": "a" * TOKENS, "usage": usage}))


def each_realtime_response_is_recorded():
    responses = 4
    with _server(_transcribe, compression="deflate") as server, Tokometer(server.port) as relay:
        for compression in ("deflate", None):
            with connect(f"ws://127.0.0.1:{relay.port}{PATH}", compression=compression) as session:
                assert json.loads(session.recv())["type"] == "session.created"
                for _ in range(responses):
                    session.send(json.dumps({"type": "input_audio_buffer.append", "audio": "UklG" * 1000}))
                    session.send(json.dumps({"type": "input_audio_buffer.commit", "final": True}))
                    while json.loads(session.recv())["type"] != "transcription.done":
                        pass
        records = relay.wait_for_records(2 * (1 + responses))
        realtime = [record for record in records if record["operation"] == "realtime"]
        assert len(realtime) == 2 * responses, [record["operation"] for record in records]
        for record in realtime:
            actual = record["outcome"], record["output_tokens"], record["output_tokens_source"], record["input_tokens"]
            assert actual == (names.OK, TOKENS, "usage", PROMPT_TOKENS), record
            assert record["model"] == "voxtral" and record["time_to_first_token_ms"] is not None, record
        assert relay.total(names.DETACHED) == 0
