"""Names of tokometer's interface that these tests use: metrics, outcomes, headers and configuration."""

import json

# Prometheus names of metrics (docs/reference/metrics.md).
REQUESTS = "tokometer_requests_total"
OUTPUT_TOKENS = "tokometer_output_tokens_total"
INPUT_TOKENS = "tokometer_input_tokens_total"
LIVE_TOKENS = "tokometer_live_tokens_total"
IN_FLIGHT = "tokometer_in_flight"
DETACHED = "tokometer_observer_detached_total"
CONNECTIONS_OPEN = "tokometer_connections_open"
DELIVERY_BLOCKED_SUM = "tokometer_delivery_blocked_seconds_sum"
EXPORTS_FAILED = "tokometer_telemetry_exports_failed_total"
PHASE_SUM = "tokometer_phase_duration_seconds_sum"
ENGINE_SPANS_RECEIVED = "tokometer_engine_spans_received_total"
ENGINE_SPANS_FORWARDED = "tokometer_engine_spans_forwarded_total"
SPAN_JOINS = "tokometer_span_joins_total"
INTERCEPTION = "tokometer_interception"
FIRST_TOKEN_COUNT = "tokometer_time_to_first_token_seconds_count"

# OTLP names of the same metrics.
OTLP_REQUESTS = "tokometer.requests"
OTLP_OUTPUT_TOKENS = "tokometer.output.tokens"

# These series exist only while they have a value. A scraped series ends with the first scrape without it. OTLP cannot
# express the end of a series, so a pushed series remains for some minutes.
TRANSIENT = (
    "tokometer_engine_silence",
    "tokometer_in_flight_age",
    "tokometer_in_flight_wait",
    "tokometer_queue_time_estimate",
)

# Metrics about the process itself, and ages, differ between a scrape and a push; only their labels are compared.
VARYING = (
    *TRANSIENT,
    "process_",
    "tokometer_engine_scrape_age",
    "tokometer_engine_scrape_duration",
    "tokometer_event_loop_",
    "tokometer_telemetry_",
    "tokometer_observer_time",
)

# The alert for an unreachable server.
UPSTREAM_DOWN = "LLMUpstreamDown"

# Values in the access log.
OK = "ok"
ABORTED_EARLY = "client_abort_before_first_token"
ABORTED = "client_abort_mid_stream"
REFUSED = "upstream_refused"
SERVER_DIED = {"upstream_reset", "truncated"}
DRAINED = "drained"
LOWER_BOUND = "deltas_lower_bound"
EXACT = {"usage", "engine_span", "token_ids", "native_counter", "logprobs"}

# The request header that selects the simulator's fault.
SIM_FAULT = "x-sim-fault"
# Generates tokens as fast as the client reads them.
SIM_UNPACED = ["--rate", "1000000", "--ttft-ms", "0"]
SIM_QUICK = ["--rate", "400"]


def config(*, access_log, otlp_metrics=None, otlp=None, otlp_traces=None, otlp_receiver=None, grace_secs=None, resource=None, log_level=None, wedge=None, scrape=None, slo=None, more=None):
    """A configuration file in JSON, which is valid YAML."""
    settings = {"access_log": {"enabled": True, "path": str(access_log), "format": "json"}}
    if otlp_metrics:
        settings["otlp"] = {"endpoint": otlp_metrics.removesuffix("/v1/metrics"), "timeout": "1s", "metrics": {"interval": "500ms"}, "traces": {"enabled": False}}
    if otlp:
        settings["otlp"] = {"endpoint": otlp, "metrics": {"interval": "500ms"}}
    if otlp_traces:
        settings["otlp"] = {"endpoint": otlp_traces.removesuffix("/v1/traces"), "metrics": {"enabled": False}}
    if otlp_receiver:
        settings["engine_spans"] = {"listen": [otlp_receiver]}
    if log_level:
        settings["log"] = {"level": log_level, "format": "json"}
    if grace_secs is not None:
        settings["process"] = {"grace_period": f"{grace_secs}s"}
    if wedge:
        settings["wedge"] = wedge
    if scrape:
        settings["scrape"] = scrape
    if slo:
        settings["slo"] = slo
    if resource:
        settings["telemetry"] = {"resource": resource}
    return json.dumps(settings | (more or {}))
