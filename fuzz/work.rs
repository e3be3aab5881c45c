//! Limits what an input may cost.

use std::time::Duration;

use rustix::time::ClockId;
use rustix::time::clock_gettime;

/// CPU time that any input may take: tables that are built once, and a slow machine.
const FIXED: Duration = Duration::from_millis(200);

/// And for each of its bytes, a thousand times what the program allows (docs/PERFORMANCE.md): targets read each input several
/// times, byte by byte too, with AddressSanitizer and debug assertions.
const PER_BYTE: Duration = Duration::from_micros(100);

/// Measures the CPU time from here to its drop, which panics when it is too long for the input.
#[derive(Debug)]
pub struct Work {
    begin: Duration,
    bytes: usize,
}

impl Work {
    /// The work on this input begins.
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
