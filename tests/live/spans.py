"""The receiver of engine spans, with a real gRPC client and a real collector."""

from collections import Counter
from pathlib import Path

import names
from collector import Collector
from process import BINARY, Process, Skip, Tokometer, free_port, start_sim, until

METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def _field(number, data):
    assert len(data) < 16384
    length = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
    return bytes([number << 3 | 2]) + length + data


def _message(spans):
    """An export request with these spans, encoded by hand."""
    encoded = (_field(1, bytes([n // 256 + 1, n % 256]) * 8) + _field(2, bytes([1] * 8)) + _field(5, b"step") for n in range(spans))
    return _field(1, _field(2, b"".join(_field(2, span) for span in encoded)))


def otlp_messages_reach_the_collector_unmodified():
    import grpc

    receiver = f"127.0.0.1:{free_port()}"
    with Collector() as collector, start_sim() as sim:
        with Tokometer(sim.port, otlp=collector.url, otlp_receiver=receiver) as proxy:
            sent = []
            for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
                with grpc.insecure_channel(receiver, compression=compression) as channel:
                    export = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=bytes)
                    for spans in (1, 7, 200):
                        sent.append(_message(spans))
                        assert export(sent[-1], timeout=20) == b""
                    try:
                        export(b"\xff\xff\xff", timeout=20)
                        raise AssertionError("garbage was accepted")
                    except grpc.RpcError as error:
                        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
            until(lambda: len(collector.traces()) >= len(sent), "every message at the collector")
            assert collector.traces() == sent, "the same bytes in the same order"
            assert proxy.total(names.ENGINE_SPANS_FORWARDED) == proxy.total(names.ENGINE_SPANS_RECEIVED) == 2 * 208


def collector_gets_200_spans_with_queue_times():
    try:
        import rotel
    except ImportError:
        raise Skip("no rotel (tests/components/fetch.sh python)") from None
    program = str(Path(rotel.__file__).parent / "rotel-agent")
    receiver, grpc_port, http_port = (f"127.0.0.1:{free_port()}" for _ in range(3))
    argv = [program, "start", "--otlp-grpc-endpoint", grpc_port, "--otlp-http-endpoint", http_port, "--exporter", "blackhole"]
    argv += ["--debug-log", "traces", "--debug-log-verbosity", "detailed"]
    engine = ["--max-concurrency", "8", "--otlp-traces-endpoint", f"http://{receiver}"]
    with Process("rotel", argv) as collector, start_sim(*engine) as sim:
        until(lambda: "Starting Rotel" in collector.output(), "the collector starts")
        with Tokometer(sim.port, otlp_traces=f"http://{http_port}/v1/traces", otlp_receiver=receiver) as proxy:
            load = [BINARY, "load", "--url", f"http://127.0.0.1:{proxy.port}", "--requests", "200", "--concurrency", "50", "--max-tokens", "8"]
            with Process("load", load) as client:
                assert client.wait(60) == 0
            records = proxy.wait_for_records(200, 60)
            sources = Counter(record["queue_time_source"] for record in records)
            assert sources == {"engine_span": 200}, sources
            until(lambda: collector.output().count("llm_request") >= 200, "200 spans at the collector", 30)
            assert collector.output().count("llm_request") == 200
            assert proxy.total(names.ENGINE_SPANS_FORWARDED) == proxy.total(names.ENGINE_SPANS_RECEIVED) == 200
