//! A simulated inference server and a load generator, for `demo`, tests and benches.
