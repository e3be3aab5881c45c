//! Limits the cost of an input.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time allowed for any input: covers tables built once, and slow machines.
const FIXED: Duration = Duration::from_millis(200);

/// CPU time allowed per byte: a thousand times the program's limit (docs/reference/performance.md), because targets read each
/// input several times, also byte by byte, with AddressSanitizer and debug assertions.
const PER_BYTE: Duration = Duration::from_micros(100);

/// Measures the CPU time until it is dropped; panics if the input took too long.
#[derive(Debug)]
pub struct Work {
    begin: Duration,
    bytes: usize,
}

impl Work {
    /// Starts measuring the work on this input.
    pub fn on(input: &[u8]) -> Work {
        Work { begin: cpu_time(), bytes: input.len() }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let taken = cpu_time() - self.begin;
        let most = FIXED + PER_BYTE * self.bytes as u32;
        assert!(taken <= most || std::thread::panicking(), "{} bytes took {taken:?}, at most {most:?}", self.bytes);
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
