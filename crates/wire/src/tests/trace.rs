//! A visitor that records its calls.
