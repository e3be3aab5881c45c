"""Spans and counters from OTLP/HTTP pushes, with a minimal protobuf decoder."""

import struct


def _fields(message):
    """(number, value) of each field: an int for varint, fixed64 and fixed32, bytes for length-delimited fields."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        length = varint() if kind == 2 else {1: 8, 5: 4}[kind]
        value = message[at : at + length]
        at += length
        yield key >> 3, value if kind == 2 else int.from_bytes(value, "little")


def _values(message, number):
    return [value for field, value in _fields(message) if field == number]


def _attributes(pairs):
    """The attributes with string or integer values."""
    attributes = {}
    for key, value in ((_values(pair, 1)[0].decode(), dict(_fields(_values(pair, 2)[0]))) for pair in pairs):
        if 1 in value or 3 in value:
            attributes[key] = value[1].decode() if 1 in value else value[3]
    return attributes


def _resource(part):
    """The resource attributes of a ResourceSpans or ResourceMetrics message."""
    return _attributes(pair for resource in _values(part, 1) for pair in _values(resource, 1))


def counters(body):
    """(resource, name, attributes, value) of each data point of a sum in an ExportMetricsServiceRequest."""
    for resource_metrics in _values(body, 1):
        resource = _resource(resource_metrics)
        for scope_metrics in _values(resource_metrics, 2):
            for metric in _values(scope_metrics, 2):
                for point in (point for total in _values(metric, 7) for point in _values(total, 1)):
                    fields = dict(_fields(point))
                    value = fields[6] if 6 in fields else struct.unpack("<d", struct.pack("<Q", fields[4]))[0]
                    yield resource, _values(metric, 1)[0].decode(), _attributes(_values(point, 7)), value


def spans(body):
    """The spans of an ExportTraceServiceRequest (opentelemetry-proto 1.9): names, hexadecimal ids, nanoseconds, attributes."""
    for resource_spans in _values(body, 1):
        resource = _resource(resource_spans)
        for scope_spans in _values(resource_spans, 2):
            for encoded in _values(scope_spans, 2):
                span = dict(_fields(encoded))
                yield {
                    "resource": resource,
                    "attributes": _attributes(_values(encoded, 9)),
                    "kind": span.get(6, 0),
                    "trace": span[1].hex(),
                    "id": span[2].hex(),
                    "parent": span.get(4, b"").hex(),
                    "name": span[5].decode(),
                    "from": span[7],
                    "to": span[8],
                }
