//! Bucket boundaries, in seconds where the metric's unit is `s`.

/// Durations, as recommended by semantic conventions v1.41 for `gen_ai.*.duration`.
pub(super) const DURATION: &[f64] =
    &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

/// Tokens of one operation, as recommended by semantic conventions v1.41.
pub(super) const TOKENS: &[f64] = &[
    1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0,
    67108864.0,
];

/// `gen_ai.server.time_to_first_token`, as recommended by semantic conventions v1.41.
pub(super) const TIME_TO_FIRST_TOKEN: &[f64] =
    &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// `gen_ai.server.time_per_output_token`, as recommended by semantic conventions v1.41.
pub(super) const TIME_PER_OUTPUT_TOKEN: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];

/// Waits of a whole request. Compared with the conventions: finer between 100 ms and 10 s, where objectives lie, and
/// with a higher upper end.
pub(super) const WAIT: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0,
    20.0, 30.0, 60.0, 120.0, 300.0,
];

/// Phases of a request: coarser than [`WAIT`], because every label set has one series per phase.
pub(super) const PHASE: &[f64] =
    &[0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0];

/// Gaps between tokens: from speculative decoding (under 1 ms) to a stall.
pub(super) const GAP: &[f64] = &[
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
];

/// Decode rates of one stream, tokens per second.
pub(super) const RATE: &[f64] = &[
    1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 75.0, 100.0, 125.0, 150.0, 200.0, 250.0,
    300.0, 400.0, 500.0, 750.0, 1000.0,
];

/// Prefill rates of one request, prompt tokens per second.
pub(super) const PREFILL_RATE: &[f64] =
    &[10.0, 30.0, 100.0, 300.0, 1000.0, 2000.0, 3000.0, 5000.0, 10000.0, 20000.0, 30000.0, 100000.0, 300000.0];

/// Tokens in one event.
pub(super) const CHUNK_TOKENS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0];
