"""`tokometer tap` and packets that a client forges with raw sockets, and that the server's kernel ignores."""

import json

import names
from tap_rig import POD_IP, Network, check_complete, metric_sum

TOKENS = 40

# The kinds of forged packets. The kernel answers `in_window` with a challenge ACK (RFC 5961), and drops the others.
KINDS = ("reset_below_window", "reset_above_window", "reset_in_window", "reset_with_bad_checksum", "data_with_bad_checksum")

# More unanswered SYN segments than a tap has connections.
SYNS = 70_000

# A client that sends one chat for each kind on a connection of its own, and the forged packet in the middle of the
# response; then another chat on the same connection.
CLIENT = """
import json, socket, struct, sys
server, port, kinds, tokens = json.load(sys.stdin)
body = json.dumps({"model": "sim", "stream": True, "stream_options": {"include_usage": True}, "messages": [], "ignore_eos": True, "max_tokens": tokens}).encode()
chat = b"POST /v1/chat/completions HTTP/1.1\\r\\nhost: x\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n%s" % (len(body), body)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
RST, PSH, ACK = 4, 8, 16

def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff

def forge(connection, seq, ack, flags, data=b"", damage=0):
    source, source_port = connection.getsockname()
    ends = socket.inet_aton(source) + socket.inet_aton(server)
    head = lambda value: struct.pack("!HHIIBBHHH", source_port, port, seq & 0xffffffff, ack & 0xffffffff, 0x50, flags, 65000, value, 0) + data
    value = checksum(ends + struct.pack("!BBH", 0, 6, 20 + len(data)) + head(0)) ^ damage
    packet = struct.pack("!BBHHHBBH", 0x45, 0, 40 + len(data), 1, 0x4000, 64, 6, 0) + ends + head(value)
    raw.sendto(packet, (server, 0))

def sequence(link, source_port):
    found = None
    while True:
        try:
            packet, address = link.recvfrom(65536)
        except BlockingIOError:
            return found
        if address[1] != 0x0800 or packet[23] != socket.IPPROTO_TCP:
            continue
        start = 14 + (packet[14] & 15) * 4
        sent_from, sent_to, seq, ack, offset = struct.unpack_from("!HHIIB", packet, start)
        if address[2] == socket.PACKET_OUTGOING and (sent_from, sent_to) == (source_port, port):
            end = 14 + struct.unpack_from("!H", packet, 16)[0]
            found = seq + end - start - (offset >> 4) * 4, ack

def response(connection, middle):
    data, events = b"", 0
    while b"data: [DONE]" not in data or not data.endswith(b"0\\r\\n\\r\\n"):
        received = connection.recv(65536)
        assert received, (data[-200:], middle)
        data += received
        if middle and data.count(b"\\n\\n") > 3:
            middle()
            middle = None
    assert data.startswith(b"HTTP/1.1 200"), data[:200]

for kind in kinds:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as link, socket.create_connection((server, port), 20) as connection:
        link.bind(("link0", 3))
        link.setblocking(False)
        def attack():
            seq, ack = sequence(link, connection.getsockname()[1])
            match kind:
                case "reset_below_window": forge(connection, seq - 60, ack, RST)
                case "reset_above_window": forge(connection, seq + 500_000_000, ack, RST)
                case "reset_in_window": forge(connection, seq + 100, ack, RST)
                case "reset_with_bad_checksum": forge(connection, seq, ack, RST, damage=0x1234)
                case "data_with_bad_checksum": forge(connection, seq, ack, PSH | ACK, chat, damage=0x1234)
        connection.sendall(chat)
        response(connection, attack)
        connection.sendall(chat)
        response(connection, None)
"""

# Sends SYN segments with source addresses that do not exist on the link.
FLOOD = """
import json, socket, struct, sys
server, port, count, prefix = json.load(sys.stdin)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
to = socket.inet_aton(server)

def add(value):
    value = (value >> 16) + (value & 0xffff)
    return value + (value >> 16) & 0xffff

for at in range(count):
    source = socket.inet_aton(f"{prefix}.{100 + at % 100}")
    head = struct.pack("!HHIIBBHHH", 1024 + at // 100, port, at * 7919, 0, 0x50, 2, 65000, 0, 0)
    value = ~add(sum(struct.unpack("!16H", source + to + struct.pack("!BBH", 0, 6, 20) + head))) & 0xffff
    segment = head[:16] + struct.pack("!H", value) + head[18:]
    raw.sendto(struct.pack("!BBHHHBBH", 0x45, 0, 40, 1, 0x4000, 64, 6, 0) + source + to + segment, (server, 0))
"""


def forged_packets_change_no_count():
    with Network() as network:
        network.sim(f"{POD_IP}:8000")
        network.tap(network.pod, "server", "--port=8000", "--interface=link0", "--set=tap.buffer=64MiB")
        network.run_script(network.client, CLIENT, json.dumps([POD_IP, 8000, KINDS, TOKENS]).encode())
        records, page = network.records("server", 2 * len(KINDS)), network.page(network.pod)
        assert {(record["outcome"], record["output_tokens"]) for record in records} == {(names.OK, TOKENS)}, records
        check_complete(page)
        ignored = metric_sum(page, "tokometer_capture_segments_irregular_total", '"ignored"')
        assert ignored >= len(KINDS), f"{ignored} segments ignored"


def unanswered_connection_attempts_displace_no_connection():
    with Network() as network:
        network.sim(f"{POD_IP}:8000")
        network.tap(network.pod, "server", "--port=8000", "--interface=link0", "--set=tap.buffer=64MiB")
        prefix = POD_IP.rpartition(".")[0]
        before = network.load(network.client, f"http://{POD_IP}:8000", 20, TOKENS)
        network.run_script(network.client, FLOOD, json.dumps([POD_IP, 8000, SYNS, prefix]).encode())
        after = network.load(network.client, f"http://{POD_IP}:8000", 20, TOKENS)
        records, page = network.records("server", 40), network.page(network.pod)
        assert {record["outcome"] for record in records} == {names.OK}, records
        assert sum(record["output_tokens"] for record in records) == before["tokens_from_usage"] + after["tokens_from_usage"]
        assert metric_sum(page, "tokometer_capture_packets_total") > SYNS * 0.9, "the tap has seen the flood"
