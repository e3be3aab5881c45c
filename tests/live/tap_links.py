"""`tokometer tap` on the links and packets of a pod: veth with segmentation offload, all interfaces, IPv6, VLAN tags."""

import json
import struct
from pathlib import Path

import names
from tap_rig import POD_IP, POD_IP6, Network, check_complete, ip, metric_sum

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "pcap"

# Bytes of a prompt, tokens of a response, and the maximum payload of a packet on the link.
PROMPT_BYTES, RESPONSE_TOKENS, MAX_SEGMENT = 8 << 20, 20_000, 1448


def every_request_is_measured_once_on_all_interfaces():
    with Network() as network:
        network.sim("[::]:8000")
        network.sim(f"{POD_IP}:8001")
        ports = ("--port=8000", "--port=8001")
        network.tap(network.pod, "server", *ports, "--interface=any")
        network.tap(network.client, "client", *ports, "--interface=link0")
        loads = [
            (8000, network.load(network.client, f"http://[{POD_IP6}]:8000", 32, 20)),
            (8000, network.load(network.pod, "http://[::1]:8000", 8, 20)),
            (8001, network.load(network.client, f"http://{POD_IP}:8001", 16, 20)),
            # Through the loopback interface, although the address belongs to another interface.
            (8001, network.load(network.pod, f"http://{POD_IP}:8001", 4, 20)),
        ]
        for name, namespace, captured in (("server", network.pod, loads), ("client", network.client, [loads[0], loads[2]])):
            records = network.records(name, sum(load["requests"] for _, load in captured))
            assert {(record["outcome"], record["output_tokens"], record["capture_loss"]) for record in records} == {(names.OK, 20, False)}, records
            page = network.page(namespace)
            check_complete(page)
            for listener, port in enumerate((8000, 8001)):
                expected = sum(load["requests"] for load_port, load in captured if load_port == port)
                assert sum(record["listener"] == listener for record in records) == expected, (name, port)
                assert metric_sum(page, names.REQUESTS, f'server_port="{port}"') == expected, page


def packets_of_64_kib_are_read():
    with Network() as network:
        network.sim(f"{POD_IP}:8000", "--rate", "1000000")
        bodies = {
            "big prompt": {"messages": [{"role": "user", "content": "a" * PROMPT_BYTES}]},
            "big response": {"max_tokens": RESPONSE_TOKENS, "messages": [], "ignore_eos": True},
        }
        for name, namespace, interface in (("server", network.pod, "any"), ("client", network.client, "link0")):
            network.tap(namespace, name, "--port=8000", f"--interface={interface}", "--set=tap.buffer=64MiB")
        for name, body in bodies.items():
            (network.directory / name).write_text(json.dumps({"model": "sim"} | body))
            curl = ("curl", "-s", "-H", f"x-request-id: {name}", "--data-binary", f"@{network.directory / name}")
            network.run(network.client, *curl, f"http://{POD_IP}:8000/v1/chat/completions")
        for name, namespace in (("server", network.pod), ("client", network.client)):
            records, page = {record["request_id"]: record for record in network.records(name, 2)}, network.page(namespace)
            prompt, response = records["big prompt"], records["big response"]
            # The prompt is longer than the model's context.
            assert (prompt["status"], prompt["request_bytes"]) == (400, (network.directory / "big prompt").stat().st_size), prompt
            assert (response["outcome"], response["output_tokens"]) == (names.OK, RESPONSE_TOKENS), response
            assert response["response_bytes"] > 64 << 10, response
            check_complete(page)
            size = prompt["request_bytes"] / metric_sum(page, "tokometer_capture_packets_total")
            print(f"    {name}: {size:.0f} bytes per packet")
            assert size > 2 * MAX_SEGMENT, f"{size}: no packet was larger than the link allows"


def _frames(file):
    """The packets of a pcap file with Ethernet headers, in little-endian order."""
    data = (FIXTURES / file).read_bytes()
    assert struct.unpack_from("<I", data)[0] in (0xA1B2C3D4, 0xA1B23C4D) and struct.unpack_from("<I", data, 20)[0] == 1
    at = 24
    while at < len(data):
        captured, length = struct.unpack_from("<8xII", data, at)
        assert captured == length
        yield data[at + 16 : at + 16 + captured]
        at += 16 + captured


def _tagged(frame, tag):
    return frame[:12] + struct.pack("!HH", 0x8100, tag) + frame[12:]


SENDER = """
import socket, struct, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("link0", 0))
while length := sys.stdin.buffer.read(4):
    link.send(sys.stdin.buffer.read(struct.unpack("!I", length)[0]))
"""


def vlan_tags_are_removed():
    """Frames recorded by tcpdump are sent again with a VLAN tag from the client to the pod; both sides capture them."""
    with Network() as network:
        for namespace in (network.pod, network.client):
            ip("-n", namespace, "link", "set", "link0", "mtu", "65535")
        network.tap(network.pod, "received", "--port=18000", "--interface=any")
        network.tap(network.client, "sent", "--port=18000", "--interface=link0")
        frames = [_tagged(frame, 5) for frame in _frames("veth.pcap")]
        network.run_script(network.client, SENDER, b"".join(struct.pack("!I", len(frame)) + frame for frame in frames))
        expected = [json.loads(line) for line in (FIXTURES / "requests.jsonl").read_text().splitlines()]
        for name, namespace in (("received", network.pod), ("sent", network.client)):
            check_complete(network.page(namespace))
            assert _counts(network.records(name, len(expected))) == _counts(expected), name


def _counts(records):
    """All values by request, except times and values derived from times."""
    time_keys = ("_ms", "time", "decode_tokens_per_second", "ttft_network_share", "stalls", "listener", "connection")
    values = lambda record: {key: value for key, value in record.items() if not any(part in key for part in time_keys)}
    return {record["request_id"]: values(record) for record in records}
