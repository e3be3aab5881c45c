//! A bounded queue of lines and the thread that writes them.
//!
//! Adding a line never blocks: if the queue is full, the line is dropped and counted, so that a blocked pipe or a slow
//! disk cannot delay a stream.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// Maximum time to write the waiting lines when the queue is dropped. Short: a blocked reader must not delay the exit.
pub(super) const LAST_FLUSH: Duration = Duration::from_millis(500);

/// Opens the sink: at the start, and again for each [`Lines::reopen`].
pub type Open = Box<dyn FnMut() -> io::Result<Box<dyn Write + Send>> + Send>;

/// The queue. Clones share it; dropping the last one writes the waiting lines.
#[derive(Clone, Debug)]
pub struct Lines {
    queue: SyncSender<Message>,
    counts: Arc<Counts>,
    _last: Arc<FlushOnDrop>,
}

#[derive(Debug, Default)]
struct Counts {
    dropped: AtomicU64,
    failed: AtomicU64,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    Reopen,
    Flush(SyncSender<()>),
}

impl Lines {
    /// Opens the sink and starts the thread `name`, with room for `queue_lines` waiting lines.
    ///
    /// # Errors
    ///
    /// If the sink cannot be opened or the thread cannot be started.
    pub fn start(name: &str, queue_lines: usize, mut open: Open) -> io::Result<Lines> {
        let sink = open()?;
        let (queue, messages) = sync_channel(queue_lines.max(1));
        let counts = Arc::new(Counts::default());
        let writer = Writer { sink: io::BufWriter::new(sink), open, counts: counts.clone() };
        std::thread::Builder::new().name(name.to_owned()).spawn(move || writer.run(&messages))?;
        Ok(Lines { _last: Arc::new(FlushOnDrop(queue.clone())), queue, counts })
    }

    /// Adds a line, including its line end, or drops it if the queue is full.
    pub fn add(&self, line: Vec<u8>) {
        if self.queue.try_send(Message::Line(line)).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reopens the sink after the waiting lines, for rotated files. False if the queue is full.
    pub fn reopen(&self) -> bool {
        self.queue.try_send(Message::Reopen).is_ok()
    }

    /// Waits until the waiting lines are written, but at most this long; false on timeout.
    pub fn flush(&self, at_most: Duration) -> bool {
        flush(&self.queue, at_most)
    }

    /// Lines dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Lines lost to write errors. A failed write is retried while the buffer has room.
    pub fn failed(&self) -> u64 {
        self.counts.failed.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct FlushOnDrop(SyncSender<Message>);

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        flush(&self.0, LAST_FLUSH);
    }
}

fn flush(queue: &SyncSender<Message>, at_most: Duration) -> bool {
    let end = Instant::now() + at_most;
    let (done, written) = sync_channel(1);
    let mut message = Message::Flush(done);
    loop {
        match queue.try_send(message) {
            Ok(()) => break,
            Err(std::sync::mpsc::TrySendError::Disconnected(_)) => return false,
            Err(std::sync::mpsc::TrySendError::Full(back)) => message = back,
        }
        if Instant::now() >= end {
            return false;
        }
        // The standard channel has no send with a timeout.
        std::thread::sleep(Duration::from_millis(2));
    }
    written.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok()
}

struct Writer {
    sink: io::BufWriter<Box<dyn Write + Send>>,
    open: Open,
    counts: Arc<Counts>,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let message = match messages.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    // The queue is empty: flush the buffer before sleeping.
                    self.flushed();
                    match messages.recv() {
                        Ok(message) => message,
                        Err(_) => break,
                    }
                }
            };
            match message {
                Message::Line(line) => {
                    if self.sink.write_all(&line).is_err() {
                        self.lose(1);
                    }
                }
                Message::Reopen => self.reopen(),
                Message::Flush(done) => {
                    self.flushed();
                    // The requester may have timed out.
                    done.try_send(()).ok();
                }
            }
        }
        self.give_up();
    }

    /// If the sink cannot be reopened, the old one is kept.
    fn reopen(&mut self) {
        if let Ok(sink) = (self.open)() {
            self.give_up();
            self.sink = io::BufWriter::new(sink);
        }
    }

    /// Flushes the buffer; false on an error, after which the data stays in the buffer for a retry.
    fn flushed(&mut self) -> bool {
        self.sink.flush().is_ok()
    }

    /// Flushes the buffer for the last time; lines that cannot be written are counted as lost.
    fn give_up(&mut self) {
        if !self.flushed() {
            self.lose(self.sink.buffer().iter().filter(|byte| **byte == b'\n').count() as u64);
        }
    }

    fn lose(&self, lines: u64) {
        self.counts.failed.fetch_add(lines, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A sink that blocks until it is released.
    struct Gate {
        entered: Sender<()>,
        go: Arc<Mutex<Receiver<()>>>,
        into: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.entered.send(()).ok();
            self.go.lock().unwrap().recv().ok();
            self.into.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn blocked_sink_drops_and_counts_lines_without_waiting() {
        let (entered, has_entered) = channel();
        let (go, wait) = channel();
        let into = Arc::new(Mutex::new(Vec::new()));
        let (sink, wait) = (into.clone(), Arc::new(Mutex::new(wait)));
        let open: Open =
            Box::new(move || Ok(Box::new(Gate { entered: entered.clone(), go: wait.clone(), into: sink.clone() })));
        let lines = Lines::start("gate", 2, open).unwrap();
        lines.add(b"1\n".to_vec());
        has_entered.recv().unwrap(); // The writer is blocked in the sink; the queue is empty.
        for line in [b"2\n", b"3\n", b"4\n", b"5\n"] {
            lines.add(line.to_vec());
        }
        assert_eq!(lines.dropped(), 2);
        assert!(!lines.flush(Duration::ZERO), "the queue is full");
        drop(go); // Later writes do not block.
        assert!(lines.flush(Duration::from_secs(10)));
        assert_eq!(*into.lock().unwrap(), b"1\n2\n3\n");
        assert_eq!(lines.failed(), 0);
    }

    #[test]
    fn file_is_reopened_after_a_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let opened = path.clone();
        let open: Open =
            Box::new(move || Ok(Box::new(std::fs::OpenOptions::new().create(true).append(true).open(&opened)?)));
        let lines = Lines::start("file", 8, open).unwrap();
        lines.add(b"old\n".to_vec());
        assert!(lines.flush(Duration::from_secs(10)));
        std::fs::rename(&path, folder.path().join("log.1")).unwrap();
        assert!(lines.reopen());
        lines.add(b"new\n".to_vec());
        drop(lines); // Dropping the last clone writes the waiting lines.
        assert_eq!(std::fs::read_to_string(folder.path().join("log.1")).unwrap(), "old\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new\n");
    }

    #[test]
    fn write_errors_are_counted_as_lost_lines() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::start("full", 8, Box::new(|| Ok(Box::new(Full)))).unwrap();
        // The buffer has room for the first line only.
        (0..3).for_each(|_| lines.add([b"x".repeat(5_000).as_slice(), b"\n"].concat()));
        lines.flush(Duration::from_secs(10));
        assert_eq!(lines.failed(), 2);
        assert!(lines.reopen());
        lines.flush(Duration::from_secs(10));
        assert_eq!(lines.failed(), 3, "the buffer of the old sink is lost");
    }
}
